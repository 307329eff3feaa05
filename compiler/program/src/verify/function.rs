//! Functions on their own: kernels against their signatures, values in their regions, reads after writes; and what a
//! call reads and writes of each region, for the checks of the whole program.

use super::{Report, Rule};
use crate::entity::Entity;
use crate::function::{Access, Body, Function, Halves, Value};
use crate::id::{FunctionId, Id, IdVec, ParamId, ValueId};
use crate::kernel::Kernel;
use crate::program::Program;
use crate::signature::{self, Accumulation};
use std::collections::{BTreeMap, BTreeSet};

/// The most outputs of a kernel; each is compared with every input.
const MOST_OUTPUTS: usize = 64;

/// The most byte ranges that the kernels of all functions together may go through.
const MOST_STEPS: u64 = 1 << 28;

/// Tensors in a region start at multiples of 64 bytes; the gap behind one counts as written with it.
const PADDING: u64 = 64;

/// A byte range, `start..end`.
pub(super) type Interval = (u64, u64);

/// What a call does with the bytes of a region; intervals ascend and do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Bytes that must have been written before the call.
    pub(super) reads: Vec<Interval>,
    /// Bytes that the call changes.
    pub(super) writes: Vec<Interval>,
    /// Whether what was written means nothing afterwards.
    pub(super) scratch: bool,
}

impl Summary {
    /// All bytes of a region, by what is done with them.
    fn whole(access: Access, bytes: u64) -> Self {
        let all = |yes: bool| if yes { vec![(0, bytes)] } else { Vec::new() };
        Self {
            reads: all(access.reads()),
            writes: all(access.writes()),
            scratch: access == Access::Workspace,
        }
    }
}

pub(super) type Summaries = IdVec<FunctionId, IdVec<ParamId, Summary>>;

/// Checks every function and sums up its regions.
pub(super) fn check(program: &Program, report: &mut Report) -> Summaries {
    let mut names = BTreeSet::new();
    let mut steps = 0;
    let mut summaries = Summaries::new();
    for (id, function) in program.functions.iter() {
        if !names.insert(function.name.as_str()) {
            let message = format!("the name {:?} stands twice", function.name);
            report.add(Entity::Function(id), Rule::Function, message);
        }
        divided(id, function, report);
        let whole =
            function.params.values().map(|param| Summary::whole(param.access, param.bytes.0)).collect();
        let summary = match &function.body {
            Body::Kernels { values, kernels } => {
                let before = (report.list.len(), report.more);
                let mut check = Check::new(id, function, values, report, steps);
                check.run(kernels);
                steps = check.steps;
                let summary = check.summaries();
                // What a wrong function does is not known more closely than its accesses say.
                if (report.list.len(), report.more) == before { summary } else { whole }
            }
            Body::Abstract { .. } => whole,
        };
        summaries.push(summary);
    }
    summaries
}

/// The backward half of a pair begins in the function, or behind its last region or scalar.
fn divided(id: FunctionId, function: &Function, report: &mut Report) {
    let Some(Halves { region, scalar }) = function.pair else { return };
    let (regions, scalars) = (function.params.len(), function.scalars.len());
    if region.index() > regions || scalar.index() > scalars {
        let message = format!(
            "its backward half begins at {region}, {scalar}, but it has {regions} regions and {scalars} scalars"
        );
        report.block(Entity::Function(id), Rule::Function, message);
    }
}

/// A value as a range of a region.
#[derive(Clone, Copy)]
struct Place {
    param: ParamId,
    start: u64,
    end: u64,
}

/// Bytes of a region that a kernel of this call overwrote last.
#[derive(Clone, Copy)]
struct Written {
    end: u64,
    value: ValueId,
    kernel: u32,
}

/// The bytes of a region during a call.
#[derive(Default)]
struct Region {
    /// By start; entries do not overlap.
    written: BTreeMap<u64, Written>,
    reads: Vec<Interval>,
    writes: Vec<Interval>,
}

/// The halves of a pair that something belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sides {
    forward: bool,
    backward: bool,
}

impl Sides {
    /// One of the halves.
    fn one(backward: bool) -> Self {
        Self { forward: !backward, backward }
    }

    fn join(&mut self, other: Self) {
        self.forward |= other.forward;
        self.backward |= other.backward;
    }
}

struct Check<'a> {
    id: FunctionId,
    function: &'a Function,
    values: &'a IdVec<ValueId, Value>,
    report: &'a mut Report,
    places: IdVec<ValueId, Option<Place>>,
    regions: IdVec<ParamId, Region>,
    /// The kernel that last overwrote a value as such.
    last: IdVec<ValueId, Option<u32>>,
    /// Whether a kernel adds to or overwrites the value.
    touched: IdVec<ValueId, bool>,
    /// The half of a pair that each kernel so far belongs to, and the present one.
    halves: Vec<Sides>,
    sides: Sides,
    steps: u64,
}

impl<'a> Check<'a> {
    fn new(
        id: FunctionId,
        function: &'a Function,
        values: &'a IdVec<ValueId, Value>,
        report: &'a mut Report,
        steps: u64,
    ) -> Self {
        let mut check = Self {
            id,
            function,
            values,
            report,
            places: IdVec::new(),
            regions: function.params.ids().map(|_| Region::default()).collect(),
            last: values.ids().map(|_| None).collect(),
            touched: values.ids().map(|_| false).collect(),
            halves: Vec::new(),
            sides: Sides::default(),
            steps,
        };
        for (value, row) in values.iter() {
            let place = check.place(value, row);
            check.places.push(place);
        }
        check
    }

    fn wrong(&mut self, place: Entity, message: impl Into<String>) {
        self.report.add(place, Rule::Function, message);
    }

    fn place(&mut self, id: ValueId, value: &Value) -> Option<Place> {
        let entity = Entity::Value(self.id, id);
        let Some(param) = self.function.params.get(value.param) else {
            self.wrong(entity, format!("there is no region {}", value.param));
            return None;
        };
        let bytes = value.ty.bytes().0;
        if bytes == 0 {
            self.wrong(entity, format!("{} has no elements", value.ty));
            return None;
        }
        let size = value.ty.dtype.bytes().0;
        if !value.offset.0.is_multiple_of(size) {
            self.wrong(entity, format!("starts at byte {}, no multiple of {size}", value.offset.0));
        }
        let end = u128::from(value.offset.0) + u128::from(bytes);
        if end > u128::from(param.bytes.0) {
            let message = format!("ends at byte {end} of {}, which has {}", value.param, param.bytes.0);
            self.wrong(entity, message);
            return None;
        }
        Some(Place { param: value.param, start: value.offset.0, end: value.offset.0 + bytes })
    }

    fn run(&mut self, kernels: &[Kernel]) {
        for (position, kernel) in (0u32..).zip(kernels) {
            self.sides = Sides::default();
            self.kernel(position, kernel);
            self.halves.push(self.sides);
            if self.steps > MOST_STEPS {
                self.report.block(
                    Entity::Function(self.id),
                    Rule::Function,
                    format!("its values cut its regions into so many ranges that the proof takes over {MOST_STEPS} steps"),
                );
                return;
            }
        }
        for (id, value) in self.values.iter() {
            let Some(param) = self.function.params.get(value.param) else { continue };
            let needed = match param.access {
                Access::Accumulate => !self.touched[id],
                Access::Read | Access::Write | Access::Update | Access::Workspace => false,
            };
            if needed {
                let message = format!("no kernel adds to it, but {} accumulates", value.param);
                self.wrong(Entity::Value(self.id, id), message);
            }
        }
    }

    fn kernel(&mut self, position: u32, kernel: &Kernel) {
        let entity = Entity::Kernel(self.id, position);
        let missing = kernel
            .inputs
            .iter()
            .copied()
            .chain(kernel.outputs.iter().map(|output| output.value))
            .find(|&value| self.values.get(value).is_none());
        if let Some(value) = missing {
            return self.wrong(entity, format!("there is no value {value}"));
        }
        if kernel.outputs.len() > MOST_OUTPUTS {
            let message = format!("{} outputs are more than {MOST_OUTPUTS}", kernel.outputs.len());
            return self.wrong(entity, message);
        }
        self.signature(entity, kernel);
        self.aliases(entity, kernel);
        self.side(kernel);
        let in_place = signature::updates_in_place(&kernel.op);
        for &input in &kernel.inputs {
            self.read(entity, input, "reads");
        }
        for output in &kernel.outputs {
            self.touched[output.value] = true;
            // A kernel that replaces its own input changes what stands there as an update does.
            let adds = output.accumulate || in_place || kernel.inputs.contains(&output.value);
            if adds {
                self.read(entity, output.value, if output.accumulate { "adds to" } else { "updates" });
            }
            self.write(entity, position, output.value, output.accumulate, !adds);
        }
        if self.sides == (Sides { forward: true, backward: true }) {
            self.wrong(entity, format!("{}: takes of both halves of a pair", kernel.op.name()));
        }
    }

    /// Notes the halves of a pair whose regions and scalars a kernel names. A workspace serves both.
    fn side(&mut self, kernel: &Kernel) {
        let Some(Halves { region, scalar }) = self.function.pair else { return };
        let outputs = kernel.outputs.iter().map(|output| output.value);
        for value in kernel.inputs.iter().copied().chain(outputs) {
            let Some(Place { param, .. }) = self.places[value] else { continue };
            if self.function.params[param].access != Access::Workspace {
                self.sides.join(Sides::one(param >= region));
            }
        }
        for (named, ..) in signature::scalars(&kernel.op) {
            self.sides.join(Sides::one(named >= scalar));
        }
    }

    fn signature(&mut self, entity: Entity, kernel: &Kernel) {
        let name = kernel.op.name();
        let inputs: Vec<_> = kernel.inputs.iter().map(|&value| &self.values[value].ty).collect();
        let outputs: Vec<_> = kernel.outputs.iter().map(|output| &self.values[output.value].ty).collect();
        if let Err(message) = signature::check(&kernel.op, &inputs, &outputs) {
            self.wrong(entity, format!("{name}: {message}"));
        }
        for output in &kernel.outputs {
            match (signature::accumulation(&kernel.op), output.accumulate) {
                (Accumulation::Never, true) => {
                    self.wrong(
                        entity,
                        format!("{name} does not accumulate, here it adds to {}", output.value),
                    );
                }
                (Accumulation::Always, false) => {
                    self.wrong(entity, format!("{name} accumulates, here it overwrites {}", output.value));
                }
                (Accumulation::Never, false) | (Accumulation::Always, true) | (Accumulation::Allowed, _) => {}
            }
        }
        for (scalar, ty, _) in signature::scalars(&kernel.op) {
            match self.function.scalars.get(scalar) {
                None => self.wrong(entity, format!("{name}: there is no scalar {scalar}")),
                Some(row) if row.ty != ty => {
                    let message =
                        format!("{name}: {scalar} is {}, the op needs {}", row.ty.name(), ty.name());
                    self.wrong(entity, message);
                }
                Some(_) => {}
            }
        }
    }

    /// Outputs against inputs and each other: shared bytes only where the op says so.
    fn aliases(&mut self, entity: Entity, kernel: &Kernel) {
        let overlap = |a: Place, b: Place| a.param == b.param && a.start < b.end && b.start < a.end;
        let mut found = Vec::new();
        for (o, output) in kernel.outputs.iter().enumerate() {
            let Some(place) = self.places[output.value] else { continue };
            for (i, &input) in kernel.inputs.iter().enumerate() {
                let Some(other) = self.places[input] else { continue };
                if !overlap(place, other) {
                    continue;
                }
                let same = (place.start, place.end) == (other.start, other.end)
                    && self.values[output.value].ty.dtype == self.values[input].ty.dtype;
                if output.accumulate || !same || !signature::may_replace(&kernel.op, o, i) {
                    found.push(format!("output {} shares bytes with input {input}", output.value));
                    break;
                }
            }
            for other in &kernel.outputs[..o] {
                if self.places[other.value].is_some_and(|other| overlap(place, other)) {
                    found.push(format!("outputs {} and {} share bytes", other.value, output.value));
                }
            }
        }
        for message in found {
            self.wrong(entity, format!("{}: {message}", kernel.op.name()));
        }
    }

    fn read(&mut self, entity: Entity, value: ValueId, verb: &str) {
        let Some(place) = self.places[value] else { return };
        let access = self.function.params[place.param].access;
        if access == Access::Accumulate && verb == "reads" {
            let message = format!("reads {value} in {}, which only accumulates", place.param);
            return self.wrong(entity, message);
        }
        let own = self.last[value];
        let region = &mut self.regions[place.param];
        let mut at = place.start;
        let mut stale = None;
        let mut hole = None;
        let before =
            region.written.range(..place.start).next_back().map(|(&start, &written)| (start, written));
        let inside = region.written.range(place.start..place.end).map(|(&start, &written)| (start, written));
        let mut holes = Vec::new();
        for (start, written) in before.into_iter().chain(inside) {
            self.steps += 1;
            if written.end <= place.start {
                continue;
            }
            if start > at {
                holes.push((at, start));
            }
            at = written.end;
            // What stands in a workspace belongs to the half that made it.
            if access == Access::Workspace
                && let Some(&half) = self.halves.get(written.kernel as usize)
            {
                self.sides.join(half);
            }
            if written.value != value && own.is_some_and(|own| written.kernel > own) {
                stale = Some(written);
            }
        }
        if at < place.end {
            holes.push((at, place.end));
        }
        if access.reads() {
            region.reads.append(&mut holes);
        } else {
            hole = holes.first().copied();
        }
        if let Some((start, end)) = hole {
            let message =
                format!("{verb} {value}, of which bytes {start}..{end} of {} are not written", place.param);
            self.wrong(entity, message);
        } else if let Some(written) = stale {
            let message =
                format!("{verb} {value}, but kernel {} overwrote it with {}", written.kernel, written.value);
            self.wrong(entity, message);
        }
    }

    /// Notes a write; `overwrites` if nothing remains of what was there.
    fn write(&mut self, entity: Entity, kernel: u32, value: ValueId, accumulate: bool, overwrites: bool) {
        let Some(place) = self.places[value] else { return };
        match self.function.params[place.param].access {
            Access::Read => {
                self.wrong(entity, format!("writes {value} in {}, which is read only", place.param))
            }
            Access::Accumulate if !accumulate => {
                self.wrong(entity, format!("overwrites {value} in {}, which accumulates", place.param));
            }
            Access::Accumulate | Access::Write | Access::Update | Access::Workspace => {}
        }
        let region = &mut self.regions[place.param];
        region.writes.push((place.start, place.end));
        if !overwrites {
            return;
        }
        self.last[value] = Some(kernel);
        let first = region.written.range(..place.start).next_back().map(|(&start, _)| start);
        let overlapping: Vec<u64> = first
            .into_iter()
            .chain(region.written.range(place.start..place.end).map(|(&start, _)| start))
            .filter(|start| region.written[start].end > place.start)
            .collect();
        for start in overlapping {
            self.steps += 1;
            let Some(old) = region.written.remove(&start) else { continue };
            if start < place.start {
                region.written.insert(start, Written { end: place.start, ..old });
            }
            if old.end > place.end {
                region.written.insert(place.end, old);
            }
        }
        region.written.insert(place.start, Written { end: place.end, value, kernel });
    }

    fn summaries(mut self) -> IdVec<ParamId, Summary> {
        let mut covered: IdVec<ParamId, Vec<(Interval, ValueId)>> =
            self.regions.ids().map(|_| Vec::new()).collect();
        for (value, place) in self.places.iter() {
            if let Some(place) = place {
                covered[place.param].push(((place.start, place.end), value));
            }
        }
        let mut summaries = IdVec::new();
        for (id, param) in self.function.params.iter() {
            let region = std::mem::take(&mut self.regions[id]);
            let reads = coalesce(region.reads);
            let mut writes = coalesce(region.writes);
            let scratch = match param.access {
                Access::Write => {
                    self.written_in_full(id, &writes, &covered[id]);
                    // The next tensor starts no earlier, so the gap belongs to nobody.
                    for (_, end) in &mut writes {
                        *end = end
                            .checked_next_multiple_of(PADDING)
                            .map_or(param.bytes.0, |end| end.min(param.bytes.0));
                    }
                    writes = coalesce(writes);
                    false
                }
                Access::Workspace => {
                    writes = vec![(0, param.bytes.0)];
                    true
                }
                Access::Read | Access::Update | Access::Accumulate => false,
            };
            summaries.push(Summary { reads, writes, scratch });
        }
        summaries
    }

    fn written_in_full(&mut self, id: ParamId, writes: &[Interval], values: &[(Interval, ValueId)]) {
        if values.is_empty() {
            return self.wrong(Entity::Param(self.id, id), "is to be written, but no value lies in it");
        }
        for &((start, end), value) in values {
            let before = writes.partition_point(|&(first, _)| first <= start);
            let full = before.checked_sub(1).is_some_and(|index| writes[index].1 >= end);
            if !full {
                let message = format!("{id} is to be written, but no kernel writes all of {value}");
                self.wrong(Entity::Value(self.id, value), message);
            }
        }
    }
}

/// Sorted, with overlapping and touching intervals made one.
pub(super) fn coalesce(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_unstable();
    let mut result: Vec<Interval> = Vec::with_capacity(intervals.len());
    for (start, end) in intervals {
        match result.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            Some(_) | None => result.push((start, end)),
        }
    }
    result
}
