//! Instructions to text, one line each.

use super::print_view;
use super::writer::Writer;
use crate::id::{BufferId, IdVec};
use crate::program::{Argument, Buffer, Instruction, Pass, Unit, Work};

pub(super) fn print(w: &mut Writer, instruction: &Instruction, buffers: &IdVec<BufferId, Buffer>) {
    match instruction {
        Instruction::Run { function, views, scalars, work } => {
            w.put("run f").number(function.0).put("(");
            w.items(views, |w, view| print_view(w, *view, buffers));
            for (position, &argument) in (0u64..).zip(scalars) {
                w.put(if position > 0 || !views.is_empty() { ", s" } else { "s" }).number(position).put("=");
                match argument {
                    Argument::Integer(number) => w.number(number),
                    Argument::Real(number) => w.real(number),
                    Argument::Step(input) => w.put("step.").put(input.name()),
                };
            }
            w.put(")");
            print_work(w, work);
        }
        Instruction::Send { channel, view, work } => {
            w.put("send c").number(channel.0).put(", ");
            print_view(w, *view, buffers);
            print_work(w, work);
        }
        Instruction::Recv { channel, view, work } => {
            w.put("recv c").number(channel.0).put(", ");
            print_view(w, *view, buffers);
            print_work(w, work);
        }
        Instruction::Copy { from, to } => {
            w.put("copy ");
            print_view(w, *from, buffers);
            w.put(" -> ");
            print_view(w, *to, buffers);
        }
        Instruction::Fill { view } => {
            w.put("fill ");
            print_view(w, *view, buffers);
        }
        Instruction::Reduce { group, view, work } => {
            w.put("reduce r").number(group.0).put(", ");
            print_view(w, *view, buffers);
            print_work(w, work);
        }
        Instruction::Wait { queue, position } => {
            w.put("wait q").number(queue.0).put(">=").number(*position);
        }
    }
}

fn print_work(w: &mut Writer, work: &Work) {
    match work {
        Work::Pass(pass, unit) => print_pass(w.put(" for "), *pass, *unit),
        Work::Pair(pair) => {
            print_pass(w.put(" for "), Pass::F, pair.forward);
            print_pass(w.put(" + "), pair.pass, pair.backward)
        }
        Work::Stage(work, stage) => w.put(" for ").put(work.name()).put(" g").number(stage.0),
        Work::Step(work) => w.put(" for ").put(work.name()),
    };
}

fn print_pass(w: &mut Writer, pass: Pass, unit: Unit) -> &mut Writer {
    w.put(pass.name()).put(" g").number(unit.stage.0);
    w.put(".m").number(unit.micro_batch.0).put(".i").number(unit.slice.0)
}
