//! The order of an expression: which nodes are computed inside the loop, which by a call for a whole tile, and in which
//! round.
//!
//! A round is one loop over the elements of a tile, followed by calls. A call needs its operand for the whole tile, so
//! a node belongs to the first round in which all calls below it have returned. Only results are stored, and only in
//! the last round, after everything that the element needs was read: outputs may overwrite inputs.

use pipec_program::{Node, UnaryOp};

/// Elements that a call handles at once: 2 KiB of f32.
pub(super) const TILE: usize = 512;

/// Calls of one expression at most; each takes two tiles of stack.
const MOST_CALLS: usize = 32;

/// What an input of a map covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The whole output shape.
    Full,
    /// One row, repeated.
    Row,
    /// One element, repeated.
    One,
}

/// An expression with what its code depends on; not the shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression {
    /// The nodes, each after its operands.
    pub(crate) nodes: Vec<Node>,
    /// The node of each output.
    pub(crate) results: Vec<usize>,
    /// Whether each output is added to.
    pub(crate) accumulate: Vec<bool>,
    /// What each input covers.
    pub(crate) inputs: Vec<Reach>,
}

/// A call for a whole tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The node that it computes.
    pub(super) node: usize,
    /// The function and the operand; none for random numbers.
    pub(super) function: Option<(UnaryOp, usize)>,
}

/// The rounds of an expression.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The calls after each round; the last round has none.
    pub(super) calls: Vec<Vec<Call>>,
}

impl Rounds {
    /// The rounds of an expression.
    ///
    /// # Errors
    /// A sentence for [`pipec_runtime::DeviceError::Unsupported`]: operands that do not come first, too many calls.
    pub(super) fn new(expression: &Expression) -> Result<Self, String> {
        let nodes = &expression.nodes;
        let mut needed = vec![false; nodes.len()];
        for &result in &expression.results {
            *needed.get_mut(result).ok_or("a result without a node")? = true;
        }
        for index in (0..nodes.len()).rev() {
            if needed[index] {
                for operand in operands(&nodes[index]).into_iter().flatten() {
                    if operand >= index {
                        return Err("a node before its operands".to_owned());
                    }
                    needed[operand] = true;
                }
            }
        }
        // The round in which the value of a node is there.
        let mut rounds = vec![0; nodes.len()];
        let mut calls: Vec<Vec<Call>> = Vec::new();
        for (index, node) in nodes.iter().enumerate().filter(|(index, _)| needed[*index]) {
            let ready =
                operands(node).into_iter().flatten().map(|operand| rounds[operand]).max().unwrap_or(0);
            let function = match *node {
                Node::Unary(op, operand) if is_call(op) => Some((op, operand as usize)),
                Node::Random { .. } => None,
                Node::Input(input) if input as usize >= expression.inputs.len() => {
                    return Err("a node without an input".to_owned());
                }
                Node::Input(_) | Node::Constant(_) | Node::Unary(..) | Node::Binary(..) => {
                    rounds[index] = ready;
                    continue;
                }
            };
            rounds[index] = ready + 1;
            calls.resize(calls.len().max(ready + 1), Vec::new());
            calls[ready].push(Call { node: index, function });
        }
        let count = calls.iter().map(Vec::len).sum::<usize>();
        if count > MOST_CALLS {
            return Err(format!("a map with {count} elementary functions (at most {MOST_CALLS})"));
        }
        calls.push(Vec::new());
        Ok(Self { calls })
    }
}

/// Whether a function is computed by a call.
fn is_call(op: UnaryOp) -> bool {
    match op {
        UnaryOp::Neg => false,
        UnaryOp::Exp | UnaryOp::Tanh | UnaryOp::Erf | UnaryOp::Sigmoid => true,
    }
}

/// The operands of a node.
fn operands(node: &Node) -> [Option<usize>; 2] {
    match *node {
        Node::Input(_) | Node::Constant(_) | Node::Random { .. } => [None, None],
        Node::Unary(_, a) => [Some(a as usize), None],
        Node::Binary(_, a, b) => [Some(a as usize), Some(b as usize)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipec_program::BinaryOp;

    fn rounds(nodes: Vec<Node>, results: Vec<usize>) -> Result<Vec<Vec<usize>>, String> {
        let accumulate = vec![false; results.len()];
        let expression = Expression { nodes, results, accumulate, inputs: vec![Reach::Full] };
        let rounds = Rounds::new(&expression)?;
        Ok(rounds.calls.iter().map(|calls| calls.iter().map(|call| call.node).collect()).collect())
    }

    #[test]
    fn a_call_waits_for_the_calls_below_it() {
        let nodes = vec![
            Node::Input(0),
            Node::Unary(UnaryOp::Exp, 0),
            Node::Unary(UnaryOp::Tanh, 0),
            Node::Binary(BinaryOp::Add, 1, 2),
            Node::Unary(UnaryOp::Erf, 3),
            Node::Unary(UnaryOp::Neg, 4),
        ];
        assert_eq!(rounds(nodes, vec![5]), Ok(vec![vec![1, 2], vec![4], vec![]]));
    }

    #[test]
    fn what_no_result_needs_is_not_computed() {
        let nodes = vec![Node::Input(0), Node::Unary(UnaryOp::Exp, 0), Node::Random { salt: 1 }];
        assert_eq!(rounds(nodes, vec![0]), Ok(vec![vec![]]));
    }

    #[test]
    fn malformed_and_oversized_expressions_are_refused() {
        assert!(rounds(vec![Node::Unary(UnaryOp::Neg, 0)], vec![0]).is_err());
        assert!(rounds(vec![Node::Input(1)], vec![0]).is_err());
        assert!(rounds(vec![Node::Input(0)], vec![1]).is_err());
        let mut nodes = vec![Node::Input(0)];
        nodes.extend((0..40).map(|operand| Node::Unary(UnaryOp::Exp, operand)));
        assert!(rounds(nodes, vec![40]).is_err());
    }
}
