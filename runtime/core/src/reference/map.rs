//! Element-wise expressions.

use crate::splitmix;
use pipec_program::{BinaryOp, Node, Part, UnaryOp};

/// The arithmetic of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// f32.
    Single,
    /// f64, for programs whose values are f64.
    Double,
}

/// What random numbers depend on besides their site.
#[derive(Clone, Copy)]
pub(super) struct Random {
    pub(super) seed: u64,
    pub(super) part: Option<Part>,
}

impl Random {
    /// A number in [0, 1): see [`Node::Random`].
    fn draw(self, salt: u64, element: u64, columns: u64) -> f64 {
        let index = self.part.map_or(element, |Part { tokens, first, whole }| {
            let (row, column) = (element / columns, element % columns);
            (row / tokens * whole + first + row % tokens) * columns + column
        });
        (splitmix::at(splitmix::at(self.seed, salt), index) >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// Evaluates the expression for each of `elements` elements and returns the results by output. An input shorter than
/// that is repeated: a row of `columns` for every row, a single element everywhere.
pub(super) fn map(
    nodes: &[Node],
    results: &[u32],
    inputs: &[Vec<f64>],
    elements: usize,
    columns: usize,
    random: Random,
    precision: Precision,
) -> Vec<Vec<f64>> {
    let round = |value: f64| match precision {
        Precision::Single => f64::from(value as f32),
        Precision::Double => value,
    };
    let mut outputs = vec![Vec::with_capacity(elements); results.len()];
    let mut values = vec![0.0; nodes.len()];
    for element in 0..elements {
        for (index, node) in nodes.iter().enumerate() {
            let value = match *node {
                Node::Input(input) => {
                    let input = &inputs[input as usize];
                    if input.len() == elements {
                        input[element]
                    } else if input.len() == 1 {
                        input[0]
                    } else {
                        input[element % columns]
                    }
                }
                Node::Constant(value) => f64::from(value),
                Node::Unary(op, a) => unary(op, values[a as usize]),
                Node::Binary(op, a, b) => binary(op, values[a as usize], values[b as usize]),
                Node::Random { salt } => random.draw(salt, element as u64, columns as u64),
            };
            values[index] = round(value);
        }
        for (output, &result) in outputs.iter_mut().zip(results) {
            output.push(values[result as usize]);
        }
    }
    outputs
}

fn unary(op: UnaryOp, a: f64) -> f64 {
    match op {
        UnaryOp::Neg => -a,
        UnaryOp::Exp => a.exp(),
        UnaryOp::Tanh => a.tanh(),
        UnaryOp::Erf => erf(a),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-a).exp()),
    }
}

fn binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Max => {
            if b > a {
                b
            } else {
                a
            }
        }
        BinaryOp::Min => {
            if b < a {
                b
            } else {
                a
            }
        }
        BinaryOp::Less => f64::from(u8::from(a < b)),
    }
}

/// The error function by its series of positive terms, `2 / sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!`
/// (Abramowitz and Stegun 7.1.6); beyond 6 it is 1 to the last bit of an f64.
pub(super) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let size = x.abs();
    if size > 6.0 {
        return 1.0_f64.copysign(x);
    }
    let (mut term, mut sum, mut n) = (size, size, 0.0);
    while term > sum * 1e-17 {
        n += 1.0;
        term *= 2.0 * size * size / (2.0 * n + 1.0);
        sum += term;
    }
    (2.0 / std::f64::consts::PI.sqrt() * (-size * size).exp() * sum).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(seed: u64) -> Random {
        Random { seed, part: None }
    }

    #[test]
    fn error_function() {
        // Values of the tables in Abramowitz and Stegun, chapter 7.
        for (x, value) in [(0.0, 0.0), (0.5, 0.5204998778130465), (1.0, 0.8427007929497149)] {
            assert!((erf(x) - value).abs() < 1e-15, "{x}");
            assert!((erf(-x) + value).abs() < 1e-15, "{x}");
        }
        assert!((erf(3.5) - 0.9999992569016276).abs() < 1e-15);
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn broadcasts_and_single_precision() {
        let nodes = [
            Node::Input(0),
            Node::Input(1),
            Node::Input(2),
            Node::Binary(BinaryOp::Mul, 0, 1),
            Node::Binary(BinaryOp::Add, 3, 2),
        ];
        let inputs = [vec![1., 2., 3., 4.], vec![10., 100.], vec![0.5]];
        let run = |precision| map(&nodes, &[4, 3], &inputs, 4, 2, seed(0), precision);
        assert_eq!(run(Precision::Single), [[10.5, 200.5, 30.5, 400.5], [10., 200., 30., 400.]]);
        // 2^24 + 1 is no f32.
        let nodes = [Node::Input(0), Node::Constant(1.0), Node::Binary(BinaryOp::Add, 0, 1)];
        let sum = |precision| map(&nodes, &[2], &[vec![16777216.0]], 1, 1, seed(0), precision)[0][0];
        assert_eq!(sum(Precision::Single), 16777216.0);
        assert_eq!(sum(Precision::Double), 16777217.0);
    }

    #[test]
    fn comparisons_with_ties_and_nan() {
        assert_eq!(binary(BinaryOp::Max, 1.0, 2.0), 2.0);
        assert_eq!(binary(BinaryOp::Min, 1.0, 2.0), 1.0);
        assert_eq!(binary(BinaryOp::Max, 3.0, f64::NAN), 3.0);
        assert!(binary(BinaryOp::Min, f64::NAN, 3.0).is_nan());
        assert!(binary(BinaryOp::Max, -0.0, 0.0).is_sign_negative());
        assert_eq!(binary(BinaryOp::Less, 1.0, 2.0), 1.0);
        assert_eq!(binary(BinaryOp::Less, 2.0, 2.0), 0.0);
    }

    #[test]
    fn random_numbers_depend_on_seed_salt_and_index_alone() {
        let draw = |number, salt| {
            map(&[Node::Random { salt }], &[0], &[], 1000, 10, seed(number), Precision::Single)
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
        let numbers = &draw(1, 2)[0];
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 1000.0;
        // The standard deviation of the mean of 1000 uniform numbers is 0.0091.
        assert!((mean - 0.5).abs() < 0.04, "{mean}");
        let expected = (splitmix::at(splitmix::at(1, 2), 7) >> 40) as f64 / 16777216.0;
        assert_eq!(numbers[7], expected);
    }
}
