//! Element-wise formulas: what a `map` computes of its operands, as nodes each after its operands. Equal nodes are one
//! node.
//!
//! Nothing here changes a result: no operation is reordered, folded or approximated; what is computed twice is computed
//! once. So formulas that are put into one another give the same bits as one after the other, in f32 and in f64.

use pipec_program::{BinaryOp, Node, UnaryOp};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Results of an element-wise computation over operands, which it names by position.
#[derive(Clone)]
pub struct Formula {
    /// The nodes, each after its operands. The salt of a random number is the number of its site in the layer.
    pub nodes: Vec<Node>,
    /// The node of each result, at least one.
    pub results: Vec<u32>,
}

impl Formula {
    /// How many operands it reads: one more than the last that a node names.
    pub fn operands(&self) -> usize {
        let inputs = self.nodes.iter().filter_map(|node| match node {
            Node::Input(position) => Some(*position as usize + 1),
            Node::Constant(_) | Node::Unary(..) | Node::Binary(..) | Node::Random { .. } => None,
        });
        inputs.max().unwrap_or(0)
    }

    /// Whether it draws random numbers.
    pub fn is_random(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Random { .. }))
    }

    /// A number for every part of a formula that tells it from others: nodes, then results.
    fn key(&self) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
        let node = |node: &Node| match *node {
            Node::Input(input) => (0, u64::from(input), 0),
            Node::Constant(value) => (1, u64::from(value.to_bits()), 0),
            Node::Unary(op, a) => (2 + op as u8, u64::from(a), 0),
            Node::Binary(op, a, b) => (64 + op as u8, u64::from(a), u64::from(b)),
            Node::Random { salt } => (255, salt, 0),
        };
        self.nodes.iter().map(node).chain(self.results.iter().map(|&result| (254, u64::from(result), 0)))
    }
}

impl PartialEq for Formula {
    fn eq(&self, other: &Self) -> bool {
        self.key().eq(other.key())
    }
}

impl Eq for Formula {}

impl Hash for Formula {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for part in self.key() {
            part.hash(state);
        }
    }
}

impl PartialOrd for Formula {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Formula {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl fmt::Debug for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `x0 * sigmoid(x0)`; several results stand in brackets.
impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.results.iter().map(|&result| self.text(result)).collect();
        match texts.as_slice() {
            [only] => f.write_str(only),
            several => write!(f, "({})", several.join(", ")),
        }
    }
}

impl Formula {
    fn text(&self, node: u32) -> String {
        match self.nodes[node as usize] {
            Node::Input(input) => format!("x{input}"),
            Node::Constant(value) => format!("{value}"),
            Node::Unary(op, a) => format!("{}({})", op.name(), self.text(a)),
            Node::Binary(op @ (BinaryOp::Max | BinaryOp::Min), a, b) => {
                format!("{}({}, {})", op.name(), self.text(a), self.text(b))
            }
            Node::Binary(op, a, b) => format!("({} {} {})", self.text(a), op.symbol(), self.text(b)),
            Node::Random { salt } => format!("random{salt}"),
        }
    }
}

/// A formula under construction over operands of some kind.
#[derive(Clone, Debug)]
pub struct Expression<V> {
    inputs: Vec<V>,
    nodes: Vec<Node>,
}

impl<V> Default for Expression<V> {
    fn default() -> Self {
        Self { inputs: Vec::new(), nodes: Vec::new() }
    }
}

impl<V: Copy + PartialEq> Expression<V> {
    /// Puts a formula over some operands into the expression and returns the node of each result.
    pub fn formula(&mut self, formula: &Formula, operands: &[V]) -> Vec<u32> {
        let nodes: Vec<Operand<V>> = operands.iter().map(|&operand| Operand::Value(operand)).collect();
        self.compose(formula, &nodes)
    }

    /// Puts a formula into the expression, operands being values or nodes that stand there already, and returns the node of
    /// each result.
    pub fn compose(&mut self, formula: &Formula, operands: &[Operand<V>]) -> Vec<u32> {
        let mut moved: Vec<u32> = Vec::with_capacity(formula.nodes.len());
        for &node in &formula.nodes {
            let to = match node {
                Node::Input(position) => match operands[position as usize] {
                    Operand::Value(value) => self.input(value),
                    Operand::Node(node) => node,
                },
                Node::Constant(_) | Node::Random { .. } => self.node(node),
                Node::Unary(op, a) => self.unary(op, moved[a as usize]),
                Node::Binary(op, a, b) => self.binary(op, moved[a as usize], moved[b as usize]),
            };
            moved.push(to);
        }
        formula.results.iter().map(|&result| moved[result as usize]).collect()
    }

    fn node(&mut self, node: Node) -> u32 {
        let position = self.nodes.iter().position(|&other| same(other, node)).unwrap_or_else(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        });
        index(position)
    }

    /// An element of a value.
    pub fn input(&mut self, value: V) -> u32 {
        let position = self.inputs.iter().position(|&other| other == value).unwrap_or_else(|| {
            self.inputs.push(value);
            self.inputs.len() - 1
        });
        self.node(Node::Input(index(position)))
    }

    /// A constant, rounded to f32.
    pub fn constant(&mut self, value: f64) -> u32 {
        self.node(Node::Constant(value as f32))
    }

    /// A function of a node.
    pub fn unary(&mut self, op: UnaryOp, a: u32) -> u32 {
        self.node(Node::Unary(op, a))
    }

    /// A function of two nodes.
    pub fn binary(&mut self, op: BinaryOp, a: u32, b: u32) -> u32 {
        self.node(Node::Binary(op, a, b))
    }

    /// A random number of a site.
    pub fn random(&mut self, site: u64) -> u32 {
        self.node(Node::Random { salt: site })
    }

    /// The node of each input by position in `inputs`, none where no node reads it.
    fn input_node(&self, input: usize) -> Option<u32> {
        self.nodes.iter().position(|&node| node == Node::Input(index(input))).map(index)
    }

    /// The derivative of a weighted sum of `results`, each with the node of its weight, by each input: `(input, node)`,
    /// inputs ascending by position, only those that the results depend on. Appends nodes.
    pub fn differentiate(&mut self, results: &[(u32, u32)]) -> Vec<(V, u32)> {
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

    /// The formula of `results` with its operands, without what they do not need; operands in the order in which nodes
    /// first name them.
    pub fn finish(&self, results: &[u32]) -> (Formula, Vec<V>) {
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
        let mut kept = Self::default();
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
        let results = results.iter().map(|&result| moved[result as usize]).collect();
        (Formula { nodes: kept.nodes, results }, kept.inputs)
    }
}

/// An operand of a formula that is put into an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand<V> {
    /// A value.
    Value(V),
    /// A node of the expression.
    Node(u32),
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
