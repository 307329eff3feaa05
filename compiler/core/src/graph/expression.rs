//! Element-wise expressions under construction: equal nodes are one node, and gradients follow from the nodes.
//!
//! Nothing here changes a result: no operation is reordered, folded or approximated; what is computed twice is computed
//! once.

use pipec_program::{BinaryOp, Kernel, Node, Op, Output, Part, Seed, UnaryOp, ValueId};

use super::SEED;

/// An expression over values of one shape.
#[derive(Clone, Debug, Default)]
pub(super) struct Expression {
    inputs: Vec<ValueId>,
    nodes: Vec<Node>,
}

impl Expression {
    /// The expression of an element-wise kernel.
    pub(super) fn of(inputs: &[ValueId], nodes: &[Node]) -> Self {
        Self { inputs: inputs.to_vec(), nodes: nodes.to_vec() }
    }

    fn node(&mut self, node: Node) -> u32 {
        let position = self.nodes.iter().position(|&other| same(other, node)).unwrap_or_else(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        });
        index(position)
    }

    /// An element of a value.
    pub(super) fn input(&mut self, value: ValueId) -> u32 {
        let position = self.inputs.iter().position(|&other| other == value).unwrap_or_else(|| {
            self.inputs.push(value);
            self.inputs.len() - 1
        });
        self.node(Node::Input(index(position)))
    }

    /// A constant, rounded to f32.
    pub(super) fn constant(&mut self, value: f64) -> u32 {
        self.node(Node::Constant(value as f32))
    }

    /// A function of a node.
    pub(super) fn unary(&mut self, op: UnaryOp, a: u32) -> u32 {
        self.node(Node::Unary(op, a))
    }

    /// A function of two nodes.
    pub(super) fn binary(&mut self, op: BinaryOp, a: u32, b: u32) -> u32 {
        self.node(Node::Binary(op, a, b))
    }

    /// A random number.
    pub(super) fn random(&mut self, salt: u64) -> u32 {
        self.node(Node::Random { salt })
    }

    /// The node of each input by position in `inputs`, none where no node reads it.
    fn input_node(&self, input: usize) -> Option<u32> {
        self.nodes.iter().position(|&node| node == Node::Input(index(input))).map(index)
    }

    /// The derivative of a weighted sum of `results`, each with the node of its weight, by each input: `(input, node)`,
    /// inputs ascending by position, only those that the results depend on. Appends nodes.
    pub(super) fn differentiate(&mut self, results: &[(u32, u32)]) -> Vec<(ValueId, u32)> {
        use BinaryOp::{Add, Div, Less, Max, Min, Mul, Sub};
        let count = self.nodes.len();
        let inputs = self.inputs.len();
        let depends = self.depends_on_inputs();
        let mut adjoints: Vec<Option<u32>> = vec![None; count];
        for &(result, weight) in results {
            self.add_to(&mut adjoints, result, weight);
        }
        for position in (0..count).rev() {
            let Some(dy) = adjoints[position] else { continue };
            let y = index(position);
            match self.nodes[position] {
                Node::Input(_) | Node::Constant(_) | Node::Random { .. } => {}
                Node::Unary(op, a) if depends[a as usize] => {
                    let da = match op {
                        UnaryOp::Neg => self.unary(UnaryOp::Neg, dy),
                        UnaryOp::Exp => self.binary(Mul, dy, y),
                        UnaryOp::Tanh => {
                            // 1 - y^2
                            let square = self.binary(Mul, y, y);
                            let one = self.constant(1.0);
                            let slope = self.binary(Sub, one, square);
                            self.binary(Mul, dy, slope)
                        }
                        UnaryOp::Erf => {
                            // 2 / sqrt(pi) e^(-a^2)
                            let square = self.binary(Mul, a, a);
                            let negative = self.unary(UnaryOp::Neg, square);
                            let bell = self.unary(UnaryOp::Exp, negative);
                            let factor = self.constant(std::f64::consts::FRAC_2_SQRT_PI);
                            let slope = self.binary(Mul, factor, bell);
                            self.binary(Mul, dy, slope)
                        }
                        UnaryOp::Sigmoid => {
                            // y (1 - y)
                            let one = self.constant(1.0);
                            let rest = self.binary(Sub, one, y);
                            let slope = self.binary(Mul, y, rest);
                            self.binary(Mul, dy, slope)
                        }
                    };
                    self.add_to(&mut adjoints, a, da);
                }
                Node::Unary(..) => {}
                Node::Binary(op, a, b) => {
                    let (to_a, to_b) = (depends[a as usize], depends[b as usize]);
                    // Where the operands are equal, the right one takes the gradient of a maximum or minimum: so the
                    // slope of `max(x, 0)` at 0 is 0.
                    if to_a {
                        let da = match op {
                            Add | Sub => Some(dy),
                            Mul => Some(self.binary(Mul, dy, b)),
                            Div => Some(self.binary(Div, dy, b)),
                            Max => {
                                let chosen = self.binary(Less, b, a);
                                Some(self.binary(Mul, dy, chosen))
                            }
                            Min => {
                                let chosen = self.binary(Less, a, b);
                                Some(self.binary(Mul, dy, chosen))
                            }
                            Less => None,
                        };
                        if let Some(da) = da {
                            self.add_to(&mut adjoints, a, da);
                        }
                    }
                    if to_b {
                        let db = match op {
                            Add => Some(dy),
                            Sub => Some(self.unary(UnaryOp::Neg, dy)),
                            Mul => Some(self.binary(Mul, dy, a)),
                            Div => {
                                // -dy y / b
                                let product = self.binary(Mul, dy, y);
                                let quotient = self.binary(Div, product, b);
                                Some(self.unary(UnaryOp::Neg, quotient))
                            }
                            Max | Min => {
                                let other = if op == Max { (b, a) } else { (a, b) };
                                let left = self.binary(Less, other.0, other.1);
                                let one = self.constant(1.0);
                                let chosen = self.binary(Sub, one, left);
                                Some(self.binary(Mul, dy, chosen))
                            }
                            Less => None,
                        };
                        if let Some(db) = db {
                            self.add_to(&mut adjoints, b, db);
                        }
                    }
                }
            }
        }
        (0..inputs)
            .filter_map(|input| {
                let node = self.input_node(input)?;
                let adjoint = adjoints.get(node as usize).copied().flatten()?;
                Some((self.inputs[input], adjoint))
            })
            .collect()
    }

    /// Which nodes depend on an input.
    fn depends_on_inputs(&self) -> Vec<bool> {
        let mut depends: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for &node in &self.nodes {
            depends.push(match node {
                Node::Input(_) => true,
                Node::Constant(_) | Node::Random { .. } => false,
                Node::Unary(_, a) => depends[a as usize],
                Node::Binary(_, a, b) => depends[a as usize] || depends[b as usize],
            });
        }
        depends
    }

    fn add_to(&mut self, adjoints: &mut [Option<u32>], node: u32, contribution: u32) {
        let sum = match adjoints[node as usize] {
            None => contribution,
            Some(before) => self.binary(BinaryOp::Add, before, contribution),
        };
        adjoints[node as usize] = Some(sum);
    }

    /// The kernel that computes `results`, without what they do not need, over a part of whole sequences.
    pub(super) fn kernel(&self, results: &[u32], outputs: Vec<Output>, part: Option<Part>) -> Kernel {
        let mut needed = vec![false; self.nodes.len()];
        for &result in results {
            needed[result as usize] = true;
        }
        for (position, &node) in self.nodes.iter().enumerate().rev() {
            if needed[position] {
                match node {
                    Node::Input(_) | Node::Constant(_) | Node::Random { .. } => {}
                    Node::Unary(_, a) => needed[a as usize] = true,
                    Node::Binary(_, a, b) => {
                        needed[a as usize] = true;
                        needed[b as usize] = true;
                    }
                }
            }
        }
        let mut kept = Expression::default();
        let mut moved: Vec<u32> = vec![0; self.nodes.len()];
        for (position, &node) in self.nodes.iter().enumerate() {
            if needed[position] {
                moved[position] = match node {
                    Node::Input(input) => kept.input(self.inputs[input as usize]),
                    Node::Constant(_) | Node::Random { .. } => kept.node(node),
                    Node::Unary(op, a) => kept.unary(op, moved[a as usize]),
                    Node::Binary(op, a, b) => kept.binary(op, moved[a as usize], moved[b as usize]),
                };
            }
        }
        let random = kept.nodes.iter().any(|node| matches!(node, Node::Random { .. }));
        let op = Op::Map {
            nodes: kept.nodes,
            results: results.iter().map(|&result| moved[result as usize]).collect(),
            seed: random.then_some(Seed { scalar: SEED, part }),
        };
        Kernel { op, inputs: kept.inputs, outputs }
    }
}

/// The same node to the last bit: 0 and -0 differ.
fn same(a: Node, b: Node) -> bool {
    match (a, b) {
        (Node::Constant(a), Node::Constant(b)) => a.to_bits() == b.to_bits(),
        (a, b) => a == b,
    }
}

/// A position in an expression: nodes are far fewer than 2^32.
fn index(position: usize) -> u32 {
    u32::try_from(position).expect("an expression has fewer than 2^32 nodes")
}
