//! The lines of a queue.

use super::Parser;
use super::cursor::{Cursor, Parsed};
use super::tables::next_id;
use crate::id::QueueId;
use crate::program::{Argument, Instruction, Pair, Pass, Queue, QueueKind, StepInput, StepWork, Unit, Work};

impl Parser {
    /// `q0 d0 compute {`
    pub(super) fn queue(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let empty = Queue { device: crate::DeviceId(0), kind: QueueKind::Compute, instructions: Vec::new() };
        let row = self.program.queues.push(empty);
        next_id::<QueueId>(c, b'q', "a queue", &mut self.next.queue)?;
        let queue = &mut self.program.queues[row];
        queue.device = c.id(b'd', "a device")?;
        queue.kind = c.choice("a kind of queue", &QueueKind::ALL, QueueKind::name)?;
        c.expect("{")
    }

    /// A line in the block of a queue.
    pub(super) fn instruction_line(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let instruction = self.instruction(c)?;
        c.finish()?;
        if let Some((_, queue)) = self.program.queues.iter_mut().next_back() {
            queue.instructions.push(instruction);
        }
        if let Some((_, lines)) = self.lines.queues.iter_mut().next_back() {
            lines.instructions.push(self.number);
        }
        Ok(())
    }

    fn instruction(&mut self, c: &mut Cursor<'_>) -> Parsed<Instruction> {
        let at = c.here();
        match c.word() {
            "run" => self.run(c),
            "send" => {
                let channel = c.id(b'c', "a channel")?;
                c.expect(",")?;
                Ok(Instruction::Send { channel, view: self.view(c)?, work: work(c)? })
            }
            "recv" => {
                let channel = c.id(b'c', "a channel")?;
                c.expect(",")?;
                Ok(Instruction::Recv { channel, view: self.view(c)?, work: work(c)? })
            }
            "copy" => {
                let from = self.view(c)?;
                c.expect("->")?;
                Ok(Instruction::Copy { from, to: self.view(c)? })
            }
            "fill" => Ok(Instruction::Fill { view: self.view(c)? }),
            "reduce" => {
                let group = c.id(b'r', "a group")?;
                c.expect(",")?;
                Ok(Instruction::Reduce { group, view: self.view(c)?, work: work(c)? })
            }
            "wait" => {
                let queue = c.id(b'q', "a queue")?;
                c.expect(">=")?;
                Ok(Instruction::Wait { queue, position: c.number32()? })
            }
            _ => c.fail_at(at, "expected an instruction (run, send, recv, copy, fill, reduce, wait) or `}`"),
        }
    }

    /// `f3(b1, b2[0..4096], s0=step.learning_rate) for F g2.m3.i0`
    fn run(&mut self, c: &mut Cursor<'_>) -> Parsed<Instruction> {
        let function = c.id(b'f', "a function")?;
        c.expect("(")?;
        // One vector serves all calls.
        let mut views = std::mem::take(&mut self.views);
        views.clear();
        let mut scalars = Vec::new();
        let mut open = !c.eat(")");
        while open {
            if scalars.is_empty() && c.peek_word().starts_with('b') {
                views.push(self.view(c)?);
            } else {
                scalars.push(argument(c, scalars.len())?);
            }
            open = !c.eat(")");
            if open {
                c.expect(",")?;
            }
        }
        let run = Instruction::Run {
            function,
            views: views.as_slice().into(),
            scalars: scalars.into(),
            work: work(c)?,
        };
        self.views = views;
        Ok(run)
    }
}

/// `s0=17`, `s0=0.5` or `s0=step.number`, where a real number has a point or an exponent.
fn argument(c: &mut Cursor<'_>, position: usize) -> Parsed<Argument> {
    let at = c.here();
    let id: crate::ScalarId = c.id(b's', "a view such as `b0` or a scalar")?;
    if id.0 as usize != position {
        return c.fail_at(at, format!("scalars stand in order: expected s{position}"));
    }
    c.expect("=")?;
    if c.eat_word("step") {
        c.expect(".")?;
        return Ok(Argument::Step(c.choice("a step input", &StepInput::ALL, StepInput::name)?));
    }
    if c.real_is_next() { Ok(Argument::Real(c.real()?)) } else { Ok(Argument::Integer(c.number()?)) }
}

/// ` for F g2.m3.i0`, ` for F g2.m3.i0 + BW g5.m1.i0`, ` for update g1` or ` for clip`.
fn work(c: &mut Cursor<'_>) -> Parsed<Work> {
    c.expect_word("for")?;
    let at = c.here();
    let word = c.word();
    if let Some(&pass) = Pass::ALL.iter().find(|pass| pass.name() == word) {
        let first = unit(c)?;
        if pass != Pass::F || !c.eat("+") {
            return Ok(Work::Pass(pass, first));
        }
        let pass = c.choice("a pass", &Pass::ALL, Pass::name)?;
        return Ok(Work::Pair(Box::new(Pair { forward: first, backward: unit(c)?, pass })));
    }
    let Some(&work) = StepWork::ALL.iter().find(|work| work.name() == word) else {
        return c.fail_at(
            at,
            "expected what it is for: a pass (F, B, W, BW, R) or step work (tie, norm, clip, update)",
        );
    };
    if c.peek_word().is_empty() {
        Ok(Work::Step(work))
    } else {
        Ok(Work::Stage(work, c.id(b'g', "a stage")?))
    }
}

/// `g2.m3.i0`
fn unit(c: &mut Cursor<'_>) -> Parsed<Unit> {
    let stage = c.id(b'g', "a stage")?;
    c.expect(".")?;
    let micro_batch = c.id(b'm', "a micro-batch")?;
    c.expect(".")?;
    Ok(Unit { stage, micro_batch, slice: c.id(b'i', "a slice")? })
}
