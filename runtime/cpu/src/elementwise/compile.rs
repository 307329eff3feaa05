//! Machine code for element-wise expressions, by Cranelift.
//!
//! The code of an expression is `fn(context, pointers, len)`: the pointers of the inputs and then of the outputs at
//! the first element, and the number of elements. It goes tile by tile; in a tile, for every round, it runs a loop of
//! four vectors of four f32 at a time, a loop over the elements that are left, and then the calls of the round.
//!
//! Sums and products are not fused: each node rounds once, as the meaning of an expression says.

use super::expression::{Call, Expression, Reach, Rounds, TILE};
use super::tiles::{self, Context, Random};
use crate::parallel::Processor;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, I64};
use cranelift_codegen::ir::{
    AbiParam, Endianness, FuncRef, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Type, Value,
};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module};
use pipec_program::{BinaryOp, Node, UnaryOp};

/// The code of an expression: context, pointers, elements.
type Code = unsafe extern "C" fn(*const Context, *const *mut f32, usize);

/// Compiles expressions; equal ones share their code, which lives as long as the compiler.
pub(crate) struct Compiler {
    module: JITModule,
    kernels: Vec<MapKernel>,
    frontend: FunctionBuilderContext,
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub(crate) struct MapKernel {
    expression: Expression,
    code: Code,
}

impl Compiler {
    /// A compiler for this processor.
    ///
    /// # Errors
    /// When Cranelift does not know the processor.
    pub(crate) fn new() -> Result<Self, String> {
        let mut flags = settings::builder();
        for (name, value) in
            [("use_colocated_libcalls", "false"), ("is_pic", "false"), ("opt_level", "speed")]
        {
            flags.set(name, value).map_err(|error| error.to_string())?;
        }
        let isa = cranelift_native::builder()?
            .finish(settings::Flags::new(flags))
            .map_err(|error| error.to_string())?;
        let mut builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        builder.symbols(tiles::symbols());
        Ok(Self {
            module: JITModule::new(builder),
            kernels: Vec::new(),
            frontend: FunctionBuilderContext::new(),
        })
    }

    /// The code of an expression.
    ///
    /// # Errors
    /// A sentence that says what of the expression is not supported.
    pub(crate) fn compile(&mut self, expression: Expression) -> Result<MapKernel, String> {
        if let Some(kernel) = self.kernels.iter().find(|kernel| kernel.expression == expression) {
            return Ok(kernel.clone());
        }
        let rounds = Rounds::new(&expression)?;
        let mut context = self.module.make_context();
        for _ in 0..3 {
            context.func.signature.params.push(AbiParam::new(I64));
        }
        let builder = FunctionBuilder::new(&mut context.func, &mut self.frontend);
        emit(&mut self.module, builder, &expression, &rounds)?;
        let name = format!("map{}", self.kernels.len());
        let function = self
            .module
            .declare_function(&name, Linkage::Local, &context.func.signature)
            .map_err(|error| error.to_string())?;
        self.module.define_function(function, &mut context).map_err(|error| error.to_string())?;
        self.module.clear_context(&mut context);
        self.module.finalize_definitions().map_err(|error| error.to_string())?;
        let code = self.module.get_finalized_function(function);
        // SAFETY: the code was just made with this signature and the calling convention of the platform.
        let code = unsafe { std::mem::transmute::<*const u8, Code>(code) };
        let kernel = MapKernel { expression, code };
        self.kernels.push(kernel.clone());
        Ok(kernel)
    }
}

impl MapKernel {
    /// Runs the expression over `rows` rows of `columns` elements; `pointers` are those of inputs and then outputs.
    ///
    /// # Safety
    /// The pointers hold what the expression says (all rows, a row or an element); nobody else accesses them; an output
    /// overlaps an input of full shape entirely or not at all, and nothing else. The compiler is alive.
    pub(crate) unsafe fn run(
        &self,
        processor: &Processor,
        random: Random,
        rows: usize,
        columns: usize,
        pointers: &[*mut f32],
    ) {
        let has_rows = self.expression.inputs.contains(&Reach::Row);
        // Without rows to repeat, all elements are one row; threads then share it at whole tiles.
        let (units, span) = if has_rows { (rows, columns) } else { ((rows * columns).div_ceil(TILE), TILE) };
        let pointers = Pointers(pointers);
        processor.split(units, span / 2, (), &|range, ()| {
            let elements = range.start * span..(range.end * span).min(rows * columns);
            let step = if has_rows { columns } else { elements.len() };
            for first in elements.step_by(step.max(1)) {
                let context = Context { set: processor.set, random, first: first as u64 };
                let mut shifted = [std::ptr::null_mut(); MOST_POINTERS];
                for (index, (shifted, pointer)) in shifted.iter_mut().zip(pointers.get()).enumerate() {
                    *shifted = match self.expression.inputs.get(index) {
                        Some(Reach::Row | Reach::One) => *pointer,
                        Some(Reach::Full) | None => pointer.wrapping_add(first),
                    };
                }
                let len = step.min(rows * columns - first);
                // SAFETY: the caller promises the pointers; parts do not meet.
                unsafe { (self.code)(&context, shifted.as_ptr(), len) };
            }
        });
    }
}

/// Inputs and outputs of an expression at most.
pub(crate) const MOST_POINTERS: usize = 24;

/// The pointers of a call, which its threads share.
struct Pointers<'a>(&'a [*mut f32]);

impl<'a> Pointers<'a> {
    fn get(&self) -> &'a [*mut f32] {
        self.0
    }
}

// SAFETY: the caller of `MapKernel::run` promises that nobody else accesses what they point to, and threads access
// different elements.
unsafe impl Sync for Pointers<'_> {}

/// Where an element of the expression comes from while code is made.
struct Emitter<'a, 'b> {
    expression: &'a Expression,
    builder: FunctionBuilder<'b>,
    /// The first elements of inputs and outputs in this tile.
    addresses: Vec<Value>,
    /// The single elements of the inputs that have one.
    singles: Vec<Option<Value>>,
    /// The address of the tile of a node that a call has computed.
    tiles: Vec<Option<Value>>,
}

/// Elements of a turn of the vector loop.
const STEP: i64 = 16;

fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

fn emit(
    module: &mut JITModule,
    mut builder: FunctionBuilder<'_>,
    expression: &Expression,
    rounds: &Rounds,
) -> Result<(), String> {
    let pointers = expression.inputs.len() + expression.results.len();
    if pointers > MOST_POINTERS {
        return Err(format!("a map of {pointers} inputs and outputs (at most {MOST_POINTERS})"));
    }
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let [context, table, len] = builder.block_params(entry) else {
        return Err("a function with three parameters".to_owned());
    };
    let (context, table, len) = (*context, *table, *len);
    let bases: Vec<Value> =
        (0..pointers).map(|index| builder.ins().load(I64, flags(), table, 8 * index as i32)).collect();
    let singles = expression
        .inputs
        .iter()
        .zip(&bases)
        .map(|(reach, &base)| (*reach == Reach::One).then(|| builder.ins().load(F32, flags(), base, 0)))
        .collect();

    // Two tiles of stack per call: the operand and the result.
    let slot = |builder: &mut FunctionBuilder<'_>| {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 4 * TILE as u32, 6);
        let slot = builder.create_sized_stack_slot(data);
        builder.ins().stack_addr(I64, slot, 0)
    };
    let all_calls: Vec<Call> = rounds.calls.iter().flatten().copied().collect();
    let mut tiles = vec![None; expression.nodes.len()];
    let mut operands = vec![None; expression.nodes.len()];
    for call in &all_calls {
        tiles[call.node] = Some(slot(&mut builder));
        if call.function.is_some_and(|(_, operand)| direct(expression, operand).is_none()) {
            operands[call.node] = Some(slot(&mut builder));
        }
    }
    let mut functions = Vec::new();
    for call in &all_calls {
        let (name, parameters) = match call.function {
            Some((op, _)) => (tiles::name(op), 4),
            None => (tiles::RANDOM, 5),
        };
        let mut signature = module.make_signature();
        signature.params.extend((0..parameters).map(|_| AbiParam::new(I64)));
        let id =
            module.declare_function(name, Linkage::Import, &signature).map_err(|error| error.to_string())?;
        functions.push((call.node, module.declare_func_in_func(id, builder.func)));
    }

    let zero = builder.ins().iconst(I64, 0);
    let header = builder.create_block();
    let body = builder.create_block();
    let exit = builder.create_block();
    let first = builder.append_block_param(header, I64);
    builder.ins().jump(header, &[zero.into()]);
    builder.switch_to_block(header);
    let more = builder.ins().icmp(IntCC::UnsignedLessThan, first, len);
    builder.ins().brif(more, body, &[], exit, &[]);
    builder.switch_to_block(body);
    let left = builder.ins().isub(len, first);
    let tile = builder.ins().iconst(I64, TILE as i64);
    let count = builder.ins().umin(left, tile);
    let four = builder.ins().iconst(I64, 4);
    let offset = builder.ins().imul(first, four);
    let addresses = bases.iter().map(|&base| builder.ins().iadd(base, offset)).collect();

    let mut emitter = Emitter { expression, builder, addresses, singles, tiles: vec![None; tiles.len()] };
    for (round, calls) in rounds.calls.iter().enumerate() {
        // What the loop of this round stores: operands of its calls, or the results.
        let stores: Vec<Store> = if round + 1 == rounds.calls.len() {
            (0..expression.results.len())
                .map(|output| Store {
                    node: expression.results[output],
                    to: emitter.addresses[expression.inputs.len() + output],
                    accumulate: expression.accumulate[output],
                })
                .collect()
        } else {
            let operand = |call: &Call| {
                Some(Store { node: call.function?.1, to: operands[call.node]?, accumulate: false })
            };
            calls.iter().filter_map(operand).collect()
        };
        if !stores.is_empty() {
            emitter.round(count, &stores);
        }
        for call in calls {
            let function =
                functions.iter().find(|(node, _)| *node == call.node).map(|(_, function)| *function);
            let (Some(function), Some(result)) = (function, tiles[call.node]) else { continue };
            emitter.call(call, function, context, first, count, result, operands[call.node]);
            emitter.tiles[call.node] = Some(result);
        }
    }
    let mut builder = emitter.builder;
    let next = builder.ins().iadd(first, tile);
    builder.ins().jump(header, &[next.into()]);
    builder.switch_to_block(exit);
    builder.ins().return_(&[]);
    builder.seal_all_blocks();
    builder.finalize(module.target_config());
    Ok(())
}

/// The input that an operand is, if a call can read it where it lies.
fn direct(expression: &Expression, operand: usize) -> Option<usize> {
    match expression.nodes[operand] {
        Node::Input(input) if expression.inputs[input as usize] != Reach::One => Some(input as usize),
        Node::Input(_) | Node::Constant(_) | Node::Unary(..) | Node::Binary(..) | Node::Random { .. } => None,
    }
}

/// A store of a round.
struct Store {
    node: usize,
    /// The address of the first element of the tile.
    to: Value,
    accumulate: bool,
}

impl Emitter<'_, '_> {
    /// The loops of a round over `count` elements: whole steps of vectors, then what is left.
    fn round(&mut self, count: Value, stores: &[Store]) {
        let zero = self.builder.ins().iconst(I64, 0);
        let mask = self.builder.ins().iconst(I64, -STEP);
        let whole = self.builder.ins().band(count, mask);
        self.turns(zero, whole, STEP, stores);
        self.turns(whole, count, 1, stores);
    }

    /// A loop over elements `from..to` by `step`.
    fn turns(&mut self, from: Value, to: Value, step: i64, stores: &[Store]) {
        let header = self.builder.create_block();
        let body = self.builder.create_block();
        let exit = self.builder.create_block();
        let element = self.builder.append_block_param(header, I64);
        self.builder.ins().jump(header, &[from.into()]);
        self.builder.switch_to_block(header);
        let more = self.builder.ins().icmp(IntCC::UnsignedLessThan, element, to);
        self.builder.ins().brif(more, body, &[], exit, &[]);
        self.builder.switch_to_block(body);
        let four = self.builder.ins().iconst(I64, 4);
        let offset = self.builder.ins().imul(element, four);
        if step == 1 {
            self.elements(F32, offset, 0, stores);
        } else {
            for vector in 0..4 {
                self.elements(F32X4, offset, 16 * vector, stores);
            }
        }
        let step = self.builder.ins().iconst(I64, step);
        let next = self.builder.ins().iadd(element, step);
        self.builder.ins().jump(header, &[next.into()]);
        self.builder.switch_to_block(exit);
    }

    /// All stores for one vector or element, `offset + constant` bytes into the tile; everything is read before the
    /// first store.
    fn elements(&mut self, ty: Type, offset: Value, constant: i32, stores: &[Store]) {
        let mut known = vec![None; self.expression.nodes.len()];
        let mut results = Vec::new();
        for store in stores {
            let mut value = self.value(ty, offset, constant, store.node, &mut known);
            if store.accumulate {
                let address = self.builder.ins().iadd(store.to, offset);
                let old = self.builder.ins().load(ty, flags(), address, constant);
                value = self.builder.ins().fadd(old, value);
            }
            results.push(value);
        }
        for (store, value) in stores.iter().zip(results) {
            let address = self.builder.ins().iadd(store.to, offset);
            self.builder.ins().store(flags(), value, address, constant);
        }
    }

    /// The value of a node; operands are computed in ascending order, so that depth costs no stack.
    fn value(
        &mut self,
        ty: Type,
        offset: Value,
        constant: i32,
        node: usize,
        known: &mut [Option<Value>],
    ) -> Value {
        let mut needed = vec![false; node + 1];
        needed[node] = true;
        for index in (0..=node).rev() {
            if needed[index] && known[index].is_none() && self.tiles[index].is_none() {
                match self.expression.nodes[index] {
                    Node::Unary(_, a) => needed[a as usize] = true,
                    Node::Binary(_, a, b) => {
                        needed[a as usize] = true;
                        needed[b as usize] = true;
                    }
                    Node::Input(_) | Node::Constant(_) | Node::Random { .. } => {}
                }
            }
        }
        for index in 0..=node {
            if needed[index] && known[index].is_none() {
                known[index] = Some(self.node(ty, offset, constant, index, known));
            }
        }
        known[node].unwrap_or(offset)
    }

    fn node(
        &mut self,
        ty: Type,
        offset: Value,
        constant: i32,
        index: usize,
        known: &[Option<Value>],
    ) -> Value {
        if let Some(tile) = self.tiles[index] {
            let address = self.builder.ins().iadd(tile, offset);
            return self.builder.ins().load(ty, flags(), address, constant);
        }
        // Operands come before their users, so they are known.
        let operand = |node: u32| known[node as usize].unwrap_or(offset);
        match self.expression.nodes[index] {
            Node::Input(input) => match self.singles[input as usize] {
                Some(single) => self.spread(ty, single),
                None => {
                    let address = self.builder.ins().iadd(self.addresses[input as usize], offset);
                    self.builder.ins().load(ty, flags(), address, constant)
                }
            },
            Node::Constant(value) => self.constant(ty, value),
            Node::Unary(UnaryOp::Neg, a) => self.builder.ins().fneg(operand(a)),
            Node::Binary(op, a, b) => self.binary(ty, op, operand(a), operand(b)),
            // Calls of earlier rounds stand in tiles.
            Node::Unary(UnaryOp::Exp | UnaryOp::Tanh | UnaryOp::Erf | UnaryOp::Sigmoid, _)
            | Node::Random { .. } => {
                unreachable!("a call is used only after its round")
            }
        }
    }

    fn spread(&mut self, ty: Type, single: Value) -> Value {
        if ty == F32 { single } else { self.builder.ins().splat(ty, single) }
    }

    fn constant(&mut self, ty: Type, value: f32) -> Value {
        let single = self.builder.ins().f32const(value);
        self.spread(ty, single)
    }

    fn binary(&mut self, ty: Type, op: BinaryOp, a: Value, b: Value) -> Value {
        match op {
            BinaryOp::Add => self.builder.ins().fadd(a, b),
            BinaryOp::Sub => self.builder.ins().fsub(a, b),
            BinaryOp::Mul => self.builder.ins().fmul(a, b),
            BinaryOp::Div => self.builder.ins().fdiv(a, b),
            BinaryOp::Max => self.choose(ty, FloatCC::GreaterThan, (b, a), b, a),
            BinaryOp::Min => self.choose(ty, FloatCC::LessThan, (b, a), b, a),
            BinaryOp::Less => {
                let (one, zero) = (self.constant(ty, 1.0), self.constant(ty, 0.0));
                self.choose(ty, FloatCC::LessThan, (a, b), one, zero)
            }
        }
    }

    /// `condition ? yes : no`, element by element.
    fn choose(&mut self, ty: Type, code: FloatCC, (a, b): (Value, Value), yes: Value, no: Value) -> Value {
        let condition = self.builder.ins().fcmp(code, a, b);
        if ty == F32 {
            return self.builder.ins().select(condition, yes, no);
        }
        let bits = MemFlagsData::new().with_endianness(Endianness::Little);
        // A comparison of vectors is a vector of integers, all ones or all zeros.
        let condition = self.builder.ins().bitcast(F32X4, bits, condition);
        self.builder.ins().bitselect(condition, yes, no)
    }

    /// The call of a node for this tile.
    #[allow(clippy::too_many_arguments)]
    fn call(
        &mut self,
        call: &Call,
        function: FuncRef,
        context: Value,
        first: Value,
        count: Value,
        result: Value,
        operand: Option<Value>,
    ) {
        match call.function {
            Some((_, node)) => {
                let from = match direct(self.expression, node) {
                    Some(input) => self.addresses[input],
                    None => operand.unwrap_or(result),
                };
                self.builder.ins().call(function, &[context, result, from, count]);
            }
            None => {
                let Node::Random { salt } = self.expression.nodes[call.node] else { return };
                let salt = self.builder.ins().iconst(I64, salt.cast_signed());
                self.builder.ins().call(function, &[context, result, first, count, salt]);
            }
        }
    }
}
