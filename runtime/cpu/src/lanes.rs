//! Loops over rows, a vector at a time, with the last elements of a row in a partial vector.

/// `target[i] = value` for all `i < len`, where `value` is an expression over vectors of the sources.
macro_rules! map_row {
    ($simd:ident, $S:ident, $len:expr, ($($x:ident = $source:expr),* $(,)?) $target:expr => $value:expr) => {{
        let len = $len;
        let whole = len / $S::LANES * $S::LANES;
        let mut at = 0;
        while at < whole {
            $(let $x = $simd.load(&$source[at..]);)*
            $simd.store($value, &mut $target[at..]);
            at += $S::LANES;
        }
        if whole < len {
            $(let $x = $simd.load_partial(&$source[whole..len]);)*
            $simd.store_partial($value, &mut $target[whole..len]);
        }
    }};
}
pub(crate) use map_row;

/// Folds `value` over all vectors of a row into four accumulators in turn, then these by `combine`; lanes beyond the end
/// of the row are taken from `absent`.
macro_rules! fold_row {
    ($simd:ident, $S:ident, $len:expr, $start:expr, $absent:expr, ($($x:ident = $source:expr),* $(,)?)
        |$sum:ident| $value:expr, |$left:ident, $right:ident| $combine:expr) => {{
        let len = $len;
        let whole = len / $S::LANES * $S::LANES;
        let mut sums = [$start; 4];
        let mut at = 0;
        while at + 4 * $S::LANES <= whole {
            for (turn, sum) in sums.iter_mut().enumerate() {
                let from = at + turn * $S::LANES;
                $(let $x = $simd.load(&$source[from..]);)*
                let $sum = *sum;
                *sum = $value;
            }
            at += 4 * $S::LANES;
        }
        let [mut first, second, third, fourth] = sums;
        while at < whole {
            $(let $x = $simd.load(&$source[at..]);)*
            let $sum = first;
            first = $value;
            at += $S::LANES;
        }
        if whole < len {
            $(let $x = {
                let mut lanes = [$absent; 16];
                lanes[..len - whole].copy_from_slice(&$source[whole..len]);
                $simd.load(&lanes)
            };)*
            let $sum = first;
            first = $value;
        }
        let both = { let ($left, $right) = (first, second); $combine };
        let rest = { let ($left, $right) = (third, fourth); $combine };
        let ($left, $right) = (both, rest);
        $combine
    }};
}
pub(crate) use fold_row;
