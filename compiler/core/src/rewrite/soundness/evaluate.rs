//! Operations in f64, as slow and obvious as their definitions: a second opinion that shares nothing with kernels.
//!
//! Every row of a value says which token of which sequence it belongs to, so that masks, rotations, tables of positions
//! and random numbers go by what a row is, never by where it stands.

use crate::graph::{Added, Attention, Formula, Op, Rope, Type};
use pipec_program::{BinaryOp, Mask, Node, Pairing, UnaryOp};
use std::ops::Range;

/// A token: its sequence and its position in it.
pub(super) type Token = (usize, usize);

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A row of numbers for each of some tokens. The loss is one too: it stands for the sum over the tokens.
    Rows { tokens: Vec<Token>, rows: Vec<Vec<f64>> },
    /// A parameter or its gradient.
    Whole(Vec<f64>),
    /// Several values.
    Tuple(Vec<Value>),
}

impl Value {
    /// The value for the tokens at some positions; a parameter is the same for all.
    pub(super) fn slice(&self, positions: &Range<usize>) -> Self {
        match self {
            Self::Rows { tokens, rows } => {
                let both = tokens.iter().zip(rows).filter(|((_, position), _)| positions.contains(position));
                let (tokens, rows) = both.map(|(&token, row)| (token, row.clone())).unzip();
                Self::Rows { tokens, rows }
            }
            Self::Whole(numbers) => Self::Whole(numbers.clone()),
            Self::Tuple(parts) => Self::Tuple(parts.iter().map(|part| part.slice(positions)).collect()),
        }
    }

    /// The rows of several values, one after the other.
    pub(super) fn concatenate(values: &[Self]) -> Self {
        let (mut tokens, mut rows) = (Vec::new(), Vec::new());
        for value in values {
            tokens.extend_from_slice(value.tokens());
            rows.extend_from_slice(value.rows());
        }
        Self::Rows { tokens, rows }
    }

    /// The sum of gradients of parameters.
    pub(super) fn sum(values: &[Self]) -> Self {
        let add = |sum: Self, next: &Self| match (sum, next) {
            (Self::Whole(sum), Self::Whole(next)) => {
                Self::Whole(sum.iter().zip(next).map(|(a, b)| a + b).collect())
            }
            (Self::Tuple(sums), Self::Tuple(nexts)) => {
                let parts = sums.into_iter().zip(nexts);
                Self::Tuple(parts.map(|(sum, next)| Self::sum(&[sum, next.clone()])).collect())
            }
            (sum, next) => panic!("{sum:?} and {next:?} are no gradients of a parameter"),
        };
        values[1..].iter().fold(values[0].clone(), add)
    }

    /// All numbers of all parts.
    fn numbers(&self) -> Vec<f64> {
        match self {
            Self::Rows { rows, .. } => rows.concat(),
            Self::Whole(numbers) => numbers.clone(),
            Self::Tuple(parts) => parts.iter().flat_map(Self::numbers).collect(),
        }
    }

    /// The largest magnitude.
    pub(super) fn largest(&self) -> f64 {
        self.numbers().into_iter().map(f64::abs).fold(0.0, f64::max)
    }

    /// How far it is from another; infinite if it is of other tokens or not a number.
    pub(super) fn distance(&self, other: &Self) -> f64 {
        if let (Self::Tuple(a), Self::Tuple(b)) = (self, other) {
            let distances = a.iter().zip(b).map(|(a, b)| a.distance(b));
            return if a.len() == b.len() { distances.fold(0.0, f64::max) } else { f64::INFINITY };
        }
        let alike = match (self, other) {
            (Self::Rows { tokens, .. }, Self::Rows { tokens: others, .. }) => tokens == others,
            (Self::Whole(_), Self::Whole(_)) => true,
            (Self::Rows { .. } | Self::Whole(_) | Self::Tuple(_), _) => false,
        };
        let (a, b) = (self.numbers(), other.numbers());
        let finite = a.iter().chain(&b).all(|number| number.is_finite());
        if !alike || !finite || a.len() != b.len() {
            return f64::INFINITY;
        }
        a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    pub(super) fn tokens(&self) -> &[Token] {
        match self {
            Self::Rows { tokens, .. } => tokens,
            Self::Whole(_) | Self::Tuple(_) => panic!("{self:?} has no rows"),
        }
    }

    pub(super) fn rows(&self) -> &[Vec<f64>] {
        match self {
            Self::Rows { rows, .. } => rows,
            Self::Whole(_) | Self::Tuple(_) => panic!("{self:?} has no rows"),
        }
    }

    fn whole(&self) -> &[f64] {
        match self {
            Self::Whole(numbers) => numbers,
            Self::Rows { .. } | Self::Tuple(_) => panic!("{self:?} is no parameter"),
        }
    }

    /// A value of the same tokens, row by row.
    fn by_row(&self, row: impl Fn(usize, &[f64]) -> Vec<f64>) -> Self {
        let rows = self.rows().iter().enumerate().map(|(at, x)| row(at, x)).collect();
        Self::Rows { tokens: self.tokens().to_vec(), rows }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The elements of a type whatever the number of tokens.
fn elements(ty: &Type) -> usize {
    match ty {
        Type::PerToken { columns, .. } => *columns as usize,
        Type::Statistic { heads, .. } => *heads as usize,
        Type::Whole { shape, .. } => shape.iter().product::<u64>() as usize,
        Type::Tuple(_) => panic!("a tuple has parts"),
    }
}

/// What a norm is of, and the sum that it gives: none if there is no residual.
fn sum_of(x: &Value, residual: Option<&Value>) -> Result<(Value, Option<Value>), String> {
    let Some(residual) = residual else { return Ok((x.clone(), None)) };
    if x.tokens() != residual.tokens() {
        return Err("a norm adds values of different tokens".to_owned());
    }
    let sum = x.by_row(|at, x| {
        let mut sum = x.to_vec();
        add_to(&mut sum, &residual.rows()[at]);
        sum
    });
    Ok((sum.clone(), Some(sum)))
}

/// The vectors of a row.
fn vectors(row: &[f64], heads: u64) -> std::slice::ChunksExact<'_, f64> {
    row.chunks_exact(row.len() / heads as usize)
}

/// The result of an operation that is no leaf, of a type, in sequences of a length.
///
/// # Errors
/// What is wrong with operands that are not of the same tokens.
pub(super) fn evaluate(op: &Op, of: &[Value], ty: &Type, length: usize) -> Result<Value, String> {
    let together = |operands: &[&Value]| {
        let mut tokens = operands.iter().map(|operand| operand.tokens());
        let first = tokens.next();
        match tokens.all(|tokens| Some(tokens) == first) {
            true => Ok(()),
            false => Err(format!("{} reads values of different tokens", op.name())),
        }
    };
    Ok(match op {
        Op::Input(_) | Op::Weight(_) | Op::Tokens | Op::Targets | Op::Places | Op::OutputGradient(_) => {
            panic!("{} is given", op.name())
        }
        Op::Part(part) => match &of[0] {
            Value::Tuple(parts) => parts[*part].clone(),
            Value::Rows { .. } | Value::Whole(_) => panic!("only tuples have parts"),
        },
        Op::Embedding => table(&of[1], &of[0], 0, elements(ty)),
        Op::Positions { first } => table(&of[0], &of[1], *first as usize, elements(ty)),
        Op::Linear => {
            let columns = of[0].rows().first().map_or(1, Vec::len);
            let products = match ty {
                Type::Tuple(types) => types.len(),
                Type::PerToken { .. } | Type::Statistic { .. } | Type::Whole { .. } => 1,
            };
            let product = |number: usize| {
                let weight = of[1 + number].whole();
                of[0].by_row(|_, x| {
                    let y = weight.chunks_exact(columns).map(|row| dot(row, x));
                    match of.get(1 + products + number) {
                        Some(bias) => y.zip(bias.whole()).map(|(y, bias)| y + bias).collect(),
                        None => y.collect(),
                    }
                })
            };
            match products {
                1 => product(0),
                _ => Value::Tuple((0..products).map(product).collect()),
            }
        }
        Op::RmsNorm { heads, eps } => {
            let (x, sum) = sum_of(&of[0], of.get(2))?;
            let inverse = x.by_row(|_, x| {
                let of_vector = |x: &[f64]| 1.0 / (dot(x, x) / x.len() as f64 + eps.value()).sqrt();
                vectors(x, *heads).map(of_vector).collect()
            });
            let y = x.by_row(|at, x| {
                let vector = |(x, inverse): (&[f64], &f64)| -> Vec<f64> {
                    x.iter().zip(of[1].whole()).map(|(x, gain)| x * inverse * gain).collect()
                };
                vectors(x, *heads).zip(&inverse.rows()[at]).flat_map(vector).collect()
            });
            Value::Tuple([y, inverse].into_iter().chain(sum).collect())
        }
        Op::LayerNorm { heads, eps } => {
            let (x, sum) = sum_of(&of[0], of.get(3))?;
            let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
            let means = x.by_row(|_, x| vectors(x, *heads).map(mean).collect());
            let inverse = x.by_row(|_, x| {
                let of_vector = |x: &[f64]| {
                    let squares: Vec<f64> = x.iter().map(|&number| (number - mean(x)).powi(2)).collect();
                    1.0 / (mean(&squares) + eps.value()).sqrt()
                };
                vectors(x, *heads).map(of_vector).collect()
            });
            let y = x.by_row(|at, x| {
                let parameters = of[1].whole().iter().zip(of[2].whole());
                let statistics = means.rows()[at].iter().zip(&inverse.rows()[at]);
                let vector = |(x, (mean, inverse)): (&[f64], (&f64, &f64))| -> Vec<f64> {
                    let y = x.iter().zip(parameters.clone());
                    y.map(|(x, (gain, bias))| (x - mean) * inverse * gain + bias).collect()
                };
                vectors(x, *heads).zip(statistics).flat_map(vector).collect()
            });
            Value::Tuple([y, means, inverse].into_iter().chain(sum).collect())
        }
        Op::Rope(rope) => of[0].by_row(|at, x| {
            vectors_of(x, rope.head_dim).flat_map(|x| rotated(rope, x, of[0].tokens()[at].1)).collect()
        }),
        Op::Attention(attention) => {
            let (keys, values) = keys_and_values(of, of.len() == 5);
            together(&[&keys, &values])?;
            attend(attention, &of[0], &keys, &values)
        }
        Op::Softmax { heads } => of[0].by_row(|_, x| {
            let vector = |x: &[f64]| -> Vec<f64> {
                let lse = log_sum_exp(x);
                x.iter().map(|x| (x - lse).exp()).collect()
            };
            vectors(x, *heads).flat_map(vector).collect()
        }),
        Op::Map(formula) => {
            together(&of.iter().collect::<Vec<&Value>>())?;
            map(formula, of, length)
        }
        Op::CrossEntropy { ignore } => {
            together(&[&of[0], &of[1]])?;
            let lse = of[0].by_row(|_, x| vec![log_sum_exp(x)]);
            let loss = of[0].by_row(|at, x| {
                let target = of[1].rows()[at][0];
                vec![if is_ignored(target, *ignore) { 0.0 } else { lse.rows()[at][0] - x[target as usize] }]
            });
            Value::Tuple(vec![loss, lse])
        }
        Op::CrossEntropyGrad { ignore } => {
            together(&[&of[0], &of[1], &of[2]])?;
            of[0].by_row(|at, x| {
                let (target, lse) = (of[1].rows()[at][0], of[2].rows()[at][0]);
                let element = |(column, x): (usize, &f64)| match is_ignored(target, *ignore) {
                    true => 0.0,
                    false => (x - lse).exp() - f64::from(column == target as usize),
                };
                x.iter().enumerate().map(element).collect()
            })
        }
        Op::Product(added) => {
            let (before, dy, weight) = match added {
                Added::No => (None, &of[0], of[1].whole()),
                Added::Yes => (Some(&of[0]), &of[1], of[2].whole()),
            };
            together(&[dy, before.unwrap_or(dy)])?;
            let columns = elements(ty);
            dy.by_row(|at, dy| {
                let element = |column: usize| {
                    let terms = dy.iter().enumerate().map(|(row, dy)| dy * weight[row * columns + column]);
                    terms.sum::<f64>() + before.map_or(0.0, |before| before.rows()[at][column])
                };
                (0..columns).map(element).collect()
            })
        }
        Op::WeightProduct => {
            together(&[&of[0], &of[1]])?;
            let mut sum = vec![0.0; elements(ty)];
            for (dy, x) in of[0].rows().iter().zip(of[1].rows()) {
                for (row, dy) in dy.iter().enumerate() {
                    for (column, x) in x.iter().enumerate() {
                        sum[row * (elements(ty) / of[0].rows()[0].len()) + column] += dy * x;
                    }
                }
            }
            Value::Whole(sum)
        }
        Op::SumRows => {
            let mut sum = vec![0.0; elements(ty)];
            for dy in of[0].rows() {
                add_to(&mut sum, dy);
            }
            Value::Whole(sum)
        }
        Op::EmbeddingGrad => {
            together(&[&of[0], &of[1]])?;
            scatter(of[0].rows().iter().map(|row| row[0] as usize), of[1].rows(), elements(ty))
        }
        Op::PositionsGrad { first } => {
            let places = of[0].tokens().iter().map(|&(_, position)| position + *first as usize);
            scatter(places, of[0].rows(), elements(ty))
        }
        Op::RmsNormGrad { heads } => {
            let (x, gain, inverse, dy) = (&of[0], of[1].whole(), &of[2], &of[3]);
            together(&[x, inverse, dy, of.get(4).unwrap_or(dy)])?;
            x.by_row(|at, row| {
                let mut dx = Vec::new();
                for ((x, dy), r) in
                    vectors(row, *heads).zip(vectors(&dy.rows()[at], *heads)).zip(&inverse.rows()[at])
                {
                    let weighted: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
                    let mean = dot(&weighted, x) / x.len() as f64;
                    dx.extend(weighted.iter().zip(x).map(|(dy, x)| r * dy - r.powi(3) * x * mean));
                }
                if let Some(before) = of.get(4) {
                    add_to(&mut dx, &before.rows()[at]);
                }
                dx
            })
        }
        Op::RmsNormGainGrad { heads } => {
            let (x, inverse, dy) = (&of[0], &of[1], &of[2]);
            together(&[x, inverse, dy])?;
            let mut sum = vec![0.0; elements(ty)];
            for (at, row) in x.rows().iter().enumerate() {
                for ((x, dy), r) in
                    vectors(row, *heads).zip(vectors(&dy.rows()[at], *heads)).zip(&inverse.rows()[at])
                {
                    let terms: Vec<f64> = x.iter().zip(dy).map(|(x, dy)| x * r * dy).collect();
                    add_to(&mut sum, &terms);
                }
            }
            Value::Whole(sum)
        }
        Op::LayerNormGrad { heads } => {
            let (x, gain, mean, inverse, dy) = (&of[0], of[1].whole(), &of[2], &of[3], &of[4]);
            together(&[x, mean, inverse, dy, of.get(5).unwrap_or(dy)])?;
            x.by_row(|at, row| {
                let mut dx = Vec::new();
                let statistics = mean.rows()[at].iter().zip(&inverse.rows()[at]);
                for ((x, dy), (mean, r)) in
                    vectors(row, *heads).zip(vectors(&dy.rows()[at], *heads)).zip(statistics)
                {
                    let count = x.len() as f64;
                    let normal: Vec<f64> = x.iter().map(|x| (x - mean) * r).collect();
                    let weighted: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
                    let (sum, product) =
                        (weighted.iter().sum::<f64>() / count, dot(&weighted, &normal) / count);
                    dx.extend(
                        weighted.iter().zip(&normal).map(|(dy, normal)| r * (dy - sum - normal * product)),
                    );
                }
                if let Some(before) = of.get(5) {
                    add_to(&mut dx, &before.rows()[at]);
                }
                dx
            })
        }
        Op::LayerNormParamGrad { heads } => {
            let (x, mean, inverse, dy) = (&of[0], &of[1], &of[2], &of[3]);
            together(&[x, mean, inverse, dy])?;
            let columns = x.rows()[0].len() / *heads as usize;
            let (mut gain, mut bias) = (vec![0.0; columns], vec![0.0; columns]);
            for (at, row) in x.rows().iter().enumerate() {
                let statistics = mean.rows()[at].iter().zip(&inverse.rows()[at]);
                for ((x, dy), (mean, r)) in
                    vectors(row, *heads).zip(vectors(&dy.rows()[at], *heads)).zip(statistics)
                {
                    let terms: Vec<f64> = x.iter().zip(dy).map(|(x, dy)| (x - mean) * r * dy).collect();
                    add_to(&mut gain, &terms);
                    add_to(&mut bias, dy);
                }
            }
            Value::Tuple(vec![Value::Whole(gain), Value::Whole(bias)])
        }
        Op::AttentionGrad { of: attention, added } => {
            let count = added.count_ones() as usize;
            let sliced = of.len() - count == 8;
            let (keys, values) = keys_and_values(of, sliced);
            together(&[&keys, &values])?;
            let at = if sliced { 5 } else { 3 };
            let [o, lse, dy] = [&of[at], &of[at + 1], &of[at + 2]];
            together(&[&of[0], o, lse, dy])?;
            let grads = attend_grad(attention, [&of[0], &keys, &values, o, lse, dy]);
            let own = |grad: &Value, of: &Value| {
                let from = grad.tokens().len() - of.tokens().len();
                Value::Rows { tokens: of.tokens().to_vec(), rows: grad.rows()[from..].to_vec() }
            };
            let mut parts = [grads[0].clone(), own(&grads[1], &of[1]), own(&grads[2], &of[2])];
            let mut before = of[at + 3..].iter();
            for (part, grad) in parts.iter_mut().enumerate() {
                if added >> part & 1 == 1 {
                    let before = before.next().ok_or("an operand to add to is missing")?;
                    together(&[grad, before])?;
                    *grad = grad
                        .by_row(|at, row| row.iter().zip(&before.rows()[at]).map(|(a, b)| a + b).collect());
                }
            }
            Value::Tuple(parts.to_vec())
        }
        Op::SoftmaxGrad { heads } => {
            together(&[&of[0], &of[1]])?;
            of[0].by_row(|at, y| {
                let mut dx = Vec::new();
                for (y, dy) in vectors(y, *heads).zip(vectors(&of[1].rows()[at], *heads)) {
                    let mean = dot(y, dy);
                    dx.extend(y.iter().zip(dy).map(|(y, dy)| y * (dy - mean)));
                }
                dx
            })
        }
    })
}

fn vectors_of(row: &[f64], columns: u64) -> std::slice::ChunksExact<'_, f64> {
    row.chunks_exact(columns as usize)
}

fn add_to(sum: &mut [f64], terms: &[f64]) {
    for (sum, term) in sum.iter_mut().zip(terms) {
        *sum += term;
    }
}

fn is_ignored(target: f64, ignore: Option<u32>) -> bool {
    ignore.is_some_and(|ignore| f64::from(ignore) == target)
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// The row of a table that each row of `of` names, counted from `first`.
fn table(table: &Value, of: &Value, first: usize, columns: usize) -> Value {
    of.by_row(|_, row| table.whole()[(row[0] as usize + first) * columns..][..columns].to_vec())
}

/// Adds each row to the row of a table that it names.
fn scatter(names: impl Iterator<Item = usize>, rows: &[Vec<f64>], elements: usize) -> Value {
    let mut sum = vec![0.0; elements];
    for (name, row) in names.zip(rows) {
        add_to(&mut sum[name * row.len()..][..row.len()], row);
    }
    Value::Whole(sum)
}

/// A head at a position, rotated: the pair (a, b) number i by position * base^(-2 i / rotary).
fn rotated(rope: &Rope, x: &[f64], position: usize) -> Vec<f64> {
    let mut y = x.to_vec();
    let half = rope.rotary as usize / 2;
    for pair in 0..half {
        let (first, second) = match rope.pairing {
            Pairing::Half => (pair, pair + half),
            Pairing::Adjacent => (2 * pair, 2 * pair + 1),
        };
        let mut frequency = rope.base.powf(-2.0 * pair as f64 / rope.rotary as f64);
        if let Some(scaling) = rope.scaling {
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            let ratio = scaling.original as f64 / wavelength;
            let blend = ((ratio - scaling.low) / (scaling.high - scaling.low)).clamp(0.0, 1.0);
            frequency *= blend + (1.0 - blend) / scaling.factor;
        }
        let angle = position as f64 * frequency * if rope.inverse { -1.0 } else { 1.0 };
        y[first] = x[first] * angle.cos() - x[second] * angle.sin();
        y[second] = x[first] * angle.sin() + x[second] * angle.cos();
    }
    y
}

/// The keys and values of an attention: those of earlier slices first.
fn keys_and_values(of: &[Value], sliced: bool) -> (Value, Value) {
    match sliced {
        true => {
            let both = |at: usize| Value::concatenate(&[of[at + 2].clone(), of[at].clone()]);
            (both(1), both(2))
        }
        false => (of[1].clone(), of[2].clone()),
    }
}

fn sees(mask: Mask, query: Token, key: Token) -> bool {
    let in_mask = match mask {
        Mask::Full => true,
        Mask::Causal => key.1 <= query.1,
        Mask::Window { size } => key.1 <= query.1 && query.1 < key.1 + size as usize,
    };
    query.0 == key.0 && in_mask
}

/// A head of a row.
fn head(row: &[f64], head: usize, size: usize) -> &[f64] {
    &row[head * size..][..size]
}

/// `o, lse`: for each head o = sum over the keys that a query sees of exp(score - lse) v.
fn attend(of: &Attention, q: &Value, k: &Value, v: &Value) -> Value {
    let size = of.head_dim as usize;
    let (mut outputs, mut statistics) = (Vec::new(), Vec::new());
    for (&query, q) in q.tokens().iter().zip(q.rows()) {
        let (mut o, mut lses) = (Vec::new(), Vec::new());
        let seen: Vec<usize> =
            (0..k.tokens().len()).filter(|&key| sees(of.mask, query, k.tokens()[key])).collect();
        for number in 0..of.heads as usize {
            let shared = number / (of.heads / of.kv_heads) as usize;
            let score = |&key: &usize| {
                of.scale.value() * dot(head(q, number, size), head(&k.rows()[key], shared, size))
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let lse = log_sum_exp(&scores);
            let mut sum = vec![0.0; size];
            for (score, &key) in scores.iter().zip(&seen) {
                let weight = (score - lse).exp();
                let terms: Vec<f64> = head(&v.rows()[key], shared, size).iter().map(|v| weight * v).collect();
                add_to(&mut sum, &terms);
            }
            o.extend(sum);
            lses.push(lse);
        }
        outputs.push(o);
        statistics.push(lses);
    }
    let rows = |rows| Value::Rows { tokens: q.tokens().to_vec(), rows };
    Value::Tuple(vec![rows(outputs), rows(statistics)])
}

/// The gradients of queries, keys and values, for `q, k, v, o, lse, do`: with p = exp(score - lse),
/// dv = sum p do, ds = p (do . v - do . o) scale, dq = sum ds k, dk = sum ds q.
pub(super) fn attend_grad(of: &Attention, [q, k, v, o, lse, dy]: [&Value; 6]) -> [Value; 3] {
    let size = of.head_dim as usize;
    let zeros = |value: &Value| value.by_row(|_, row| vec![0.0; row.len()]).rows().to_vec();
    let (mut dq, mut dk, mut dv) = (zeros(q), zeros(k), zeros(v));
    for (query, &token) in q.tokens().iter().enumerate() {
        for (key, &at) in k.tokens().iter().enumerate() {
            if !sees(of.mask, token, at) {
                continue;
            }
            for number in 0..of.heads as usize {
                let shared = number / (of.heads / of.kv_heads) as usize;
                let (q, k) = (head(&q.rows()[query], number, size), head(&k.rows()[key], shared, size));
                let v = head(&v.rows()[key], shared, size);
                let (o, dy) = (head(&o.rows()[query], number, size), head(&dy.rows()[query], number, size));
                let weight = (of.scale.value() * dot(q, k) - lse.rows()[query][number]).exp();
                let slope = weight * (dot(dy, v) - dot(dy, o)) * of.scale.value();
                for i in 0..size {
                    dq[query][number * size + i] += slope * k[i];
                    dk[key][shared * size + i] += slope * q[i];
                    dv[key][shared * size + i] += weight * dy[i];
                }
            }
        }
    }
    let rows = |of: &Value, rows| Value::Rows { tokens: of.tokens().to_vec(), rows };
    [rows(q, dq), rows(k, dk), rows(v, dv)]
}

fn map(formula: &Formula, of: &[Value], length: usize) -> Value {
    let results = |at: usize, column: usize, columns: usize| -> Vec<f64> {
        let (sequence, position) = of[0].tokens()[at];
        let place = (sequence * length + position) * columns + column;
        let mut known: Vec<f64> = Vec::new();
        for &node in &formula.nodes {
            known.push(match node {
                Node::Input(input) => of[input as usize].rows()[at][column],
                Node::Constant(value) => f64::from(value),
                Node::Unary(op, a) => unary(op, known[a as usize]),
                Node::Binary(op, a, b) => binary(op, known[a as usize], known[b as usize]),
                Node::Random { salt } => random(salt, place as u64),
            });
        }
        formula.results.iter().map(|&result| known[result as usize]).collect()
    };
    let part = |part: usize| {
        of[0].by_row(|at, row| (0..row.len()).map(|column| results(at, column, row.len())[part]).collect())
    };
    match formula.results.len() {
        1 => part(0),
        count => Value::Tuple((0..count).map(part).collect()),
    }
}

fn unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Erf => erf(x),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

fn binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::Less => f64::from(a < b),
    }
}

/// Abramowitz and Stegun 7.1.6: 2 / sqrt(pi) e^(-x^2) times the sum of 2^n x^(2 n + 1) / (1 * 3 * .. * (2 n + 1)).
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// A number in [0, 1) for a site and the place of an element in whole sequences.
pub(super) fn random(site: u64, place: u64) -> f64 {
    let mut bits = place.wrapping_add(site << 32).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        bits = (bits ^ bits >> shift).wrapping_mul(factor);
    }
    ((bits ^ bits >> 31) >> 11) as f64 / (1u64 << 53) as f64
}
