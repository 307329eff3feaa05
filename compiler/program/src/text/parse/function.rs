//! The lines of a function.

use super::Parser;
use super::cursor::{Cursor, FLOPS, Parsed};
use super::tables::next_id;
use crate::function::{Access, Body, Function, Halves, Param, Scalar, ScalarType, Value};
use crate::id::{FunctionId, ParamId, ScalarId, ValueId};
use crate::units::Flops;

impl Parser {
    /// `f0 "forward_g0" {` or `f4 "forward_g0+backward_g3" pair p7, s0 {`; the row of the function is there already.
    pub(super) fn function_header(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        self.next.param = 0;
        self.next.scalar = 0;
        self.next.value = 0;
        next_id::<FunctionId>(c, b'f', "a function", &mut self.next.function)?;
        let name = c.string()?;
        let pair = c.eat_word("pair").then(|| halves(c)).transpose()?;
        if let Some((_, function)) = self.program.functions.iter_mut().next_back() {
            function.name = name;
            function.pair = pair;
        }
        c.expect("{")
    }

    /// A line in the block of a function.
    pub(super) fn function_line(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let (Some((_, function)), Some((_, lines))) =
            (self.program.functions.iter_mut().next_back(), self.lines.functions.iter_mut().next_back())
        else {
            return Ok(());
        };
        let word = c.peek_word();
        if word == "abstract" {
            return abstract_body(c, function);
        }
        match word.as_bytes().first() {
            Some(b'p') => {
                let param = param(c, &mut self.next.param)?;
                function.params.push(param);
                lines.params.push(self.number);
            }
            Some(b's') => {
                let scalar = scalar(c, &mut self.next.scalar)?;
                function.scalars.push(scalar);
                lines.scalars.push(self.number);
            }
            Some(b'v') if c.colon_follows(word) => {
                let value = value(c, &mut self.next.value)?;
                kernels(c, function)?.0.push(value);
                lines.values.push(self.number);
            }
            // A kernel may begin with its first output, with a `+` or, without outputs, with `=`.
            Some(b'v') | None => {
                let kernel = super::kernel::parse(c)?;
                kernels(c, function)?.1.push(kernel);
                lines.kernels.push(self.number);
            }
            Some(_) => {
                return c.fail(
                    "expected a line of a function: a region `p0 ..`, a scalar `s0 ..`, a value `v0: ..`, a kernel \
                     `v1 = ..`, `abstract` or `}`",
                );
            }
        }
        c.finish()
    }
}

/// `p7, s0`: where the backward half begins.
fn halves(c: &mut Cursor<'_>) -> Parsed<Halves> {
    let region = c.id(b'p', "a region")?;
    c.expect(",")?;
    Ok(Halves { region, scalar: c.id(b's', "a scalar")? })
}

fn kernels<'f>(
    c: &Cursor<'_>,
    function: &'f mut Function,
) -> Parsed<(&'f mut crate::IdVec<ValueId, Value>, &'f mut Vec<crate::Kernel>)> {
    match &mut function.body {
        Body::Kernels { values, kernels } => Ok((values, kernels)),
        Body::Abstract { .. } => c.fail_at(0, "an abstract function has neither values nor kernels"),
    }
}

fn abstract_body(c: &mut Cursor<'_>, function: &mut Function) -> Parsed<()> {
    match &function.body {
        Body::Kernels { values, kernels } if values.is_empty() && kernels.is_empty() => {}
        Body::Kernels { .. } | Body::Abstract { .. } => {
            return c.fail("an abstract function has one line `abstract` and neither values nor kernels");
        }
    }
    c.expect_word("abstract")?;
    c.expect("{")?;
    c.expect_word("flops")?;
    let flops = Flops(c.quantity(FLOPS)?);
    c.expect(",")?;
    c.expect_word("traffic")?;
    let traffic = c.bytes()?;
    c.expect("}")?;
    function.body = Body::Abstract { flops, traffic };
    c.finish()
}

fn param(c: &mut Cursor<'_>, next: &mut u32) -> Parsed<Param> {
    next_id::<ParamId>(c, b'p', "a region", next)?;
    let name = c.string()?;
    c.expect(":")?;
    let access = c.choice("an access", &Access::ALL, Access::name)?;
    Ok(Param { name, access, bytes: c.bytes()? })
}

fn scalar(c: &mut Cursor<'_>, next: &mut u32) -> Parsed<Scalar> {
    next_id::<ScalarId>(c, b's', "a scalar", next)?;
    let name = c.string()?;
    c.expect(":")?;
    Ok(Scalar { name, ty: c.choice("a type", &[ScalarType::Real, ScalarType::Integer], ScalarType::name)? })
}

fn value(c: &mut Cursor<'_>, next: &mut u32) -> Parsed<Value> {
    next_id::<ValueId>(c, b'v', "a value", next)?;
    c.expect(":")?;
    let ty = c.tensor()?;
    c.expect_word("at")?;
    let param = c.id(b'p', "a region")?;
    c.expect("+")?;
    Ok(Value { param, offset: c.bytes()?, ty })
}
