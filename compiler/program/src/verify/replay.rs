//! All queues, replayed in an order that respects waits, messages and reductions.
//!
//! The replay goes as far as any execution can: what a queue can do never depends on what another has not done yet, so
//! that the order in which ready queues are taken does not matter for whether all finish.

use super::account::{Accounts, Used, squares_meet};
use super::gradient::{self, Gradients};
use super::memory::{self, Actor, Made, Maker, Memory};
use super::order::{self, Ends};
use super::touch::{Role, Touch, Touches};
use super::unit::{self, Half, Units};
use super::{Report, Rule};
use crate::entity::Entity;
use crate::id::{BufferId, ChannelId, DeviceId, FunctionId, GroupId, Id, IdVec, ParamId, QueueId, StageId};
use crate::program::Shared;
use crate::program::{
    Category, Feed, FeedKind, Instruction, Pass, Position, Program, ReadingKind, StepWork, Unit, View, Work,
};
use crate::units::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Replays a program and checks what only an execution shows.
pub(super) fn replay(
    program: &Program,
    touches: &Touches,
    gradients: &Gradients<'_>,
    ends: &Ends,
    report: &mut Report,
) {
    let clocks = Clocks::new(program);
    let strides: Vec<usize> = clocks.queues.values().map(Vec::len).collect();
    let Some(memory) = Memory::new(program, touches, &strides, report) else { return };
    let mut replay = Replay {
        program,
        touches,
        memory,
        units: Units::new(program.batch),
        accounts: Accounts::new(gradients),
        sources: Sources::new(program),
        rows: Rows::new(program),
        clocks,
        at: program.queues.ids().map(|_| 0).collect(),
        waiters: program.queues.ids().map(|_| BinaryHeap::new()).collect(),
        channels: program.channels.ids().map(|_| ChannelState::default()).collect(),
        groups: program.groups.ids().map(|_| Vec::new()).collect(),
        ready: program.queues.ids().rev().collect(),
        report,
    };
    while let Some(queue) = replay.ready.pop() {
        replay.advance(queue);
    }
    let finished =
        program.queues.iter().all(|(id, queue)| replay.at[id] as usize == queue.instructions.len());
    if finished {
        replay.memory.finish(replay.report);
        replay.accounts.finish(replay.report);
        replay.units.finish(program, replay.report);
    } else {
        order::explain_stop(program, ends, &replay.at, replay.report);
    }
}

/// What every queue knows of the other queues of its device.
struct Clocks {
    /// The queues of each device; clocks have one entry for each.
    queues: IdVec<DeviceId, Vec<QueueId>>,
    /// The place of a queue among those of its device.
    place: IdVec<QueueId, usize>,
    now: IdVec<QueueId, Vec<Position>>,
    /// The clock of a queue from a position on, where it changed: positions, and clocks one after the other.
    changes: IdVec<QueueId, (Vec<Position>, Vec<Position>)>,
}

impl Clocks {
    fn new(program: &Program) -> Self {
        let mut queues: IdVec<DeviceId, Vec<QueueId>> = program.devices.ids().map(|_| Vec::new()).collect();
        let mut place = IdVec::new();
        for (id, queue) in program.queues.iter() {
            place.push(queues[queue.device].len());
            queues[queue.device].push(id);
        }
        let now = program.queues.values().map(|queue| vec![0; queues[queue.device].len()]).collect();
        Self { queues, place, now, changes: program.queues.ids().map(|_| Default::default()).collect() }
    }

    /// Joins the clock that another queue had when it had finished `position` instructions; `at` is how many this one
    /// has finished with the wait.
    fn join(&mut self, queue: QueueId, other: QueueId, position: Position, at: Position) {
        let place = self.place[other];
        if self.now[queue][place] >= position {
            // Known already, and with it all that the other knew then.
            return;
        }
        let (positions, clocks) = &self.changes[other];
        let stride = self.now[queue].len();
        let now = &mut self.now[queue];
        if let Some(change) = positions.partition_point(|&from| from <= position).checked_sub(1) {
            let then = &clocks[change * stride..(change + 1) * stride];
            for (now, &then) in now.iter_mut().zip(then) {
                *now = (*now).max(then);
            }
        }
        now[place] = position;
        let (positions, clocks) = &mut self.changes[queue];
        positions.push(at);
        clocks.extend_from_slice(now);
    }
}

/// Who stands at an end of a channel.
#[derive(Default)]
struct ChannelState {
    sent: u64,
    received: u64,
    sender: Option<QueueId>,
    receiver: Option<QueueId>,
}

/// Views that the batch lays out in rows, by buffer.
struct Rows {
    feeds: BTreeMap<BufferId, Vec<Feed>>,
    losses: BTreeMap<BufferId, View>,
}

impl Rows {
    fn new(program: &Program) -> Self {
        let mut feeds: BTreeMap<BufferId, Vec<Feed>> = BTreeMap::new();
        for feed in &program.feeds {
            feeds.entry(feed.view.buffer).or_default().push(*feed);
        }
        for list in feeds.values_mut() {
            list.sort_by_key(|feed| feed.view);
        }
        let losses = program
            .readings
            .iter()
            .filter(|reading| reading.kind == ReadingKind::Loss)
            .map(|reading| (reading.view.buffer, reading.view))
            .collect();
        Self { feeds, losses }
    }
}

/// Where a region of a function gets its bytes from, relative to the unit of the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Feed(FeedKind),
    /// A forward pass, so many stages and slices further.
    Forward(i64, i64),
    /// A forward pass of the other cut.
    Across,
    /// A backward pass, likewise.
    Backward(i64, i64),
    In(Category),
    Several,
    Other,
}

/// What the calls so far say about a region of a function.
#[derive(Clone, Default)]
struct RegionSource {
    /// Where it came from at the first call.
    source: Option<(Source, Entity)>,
    /// Which region of which function of the same device it was.
    regions: Vec<(FunctionId, ParamId, Entity)>,
}

impl RegionSource {
    /// The region that a function was found to provide first.
    fn region_of(&mut self, producer: FunctionId, region: ParamId, place: Entity) -> (ParamId, Entity) {
        match self.regions.iter().find(|(other, ..)| *other == producer) {
            Some(&(_, region, first)) => (region, first),
            None => {
                self.regions.push((producer, region, place));
                (region, place)
            }
        }
    }
}

/// Where a backward stage gets its input from.
type Across = (StageId, Option<(FunctionId, ParamId)>);

/// What the calls and messages so far say: the same regions come from the same places at every call.
struct Sources {
    regions: IdVec<FunctionId, Vec<RegionSource>>,
    /// The region of a function that a channel takes.
    sent: BTreeMap<(ChannelId, FunctionId), (ParamId, Entity)>,
    /// Pairs of touch and stage whose weights have been checked.
    weights: BTreeSet<(u32, u32)>,
    /// The forward stage, and the region of its function if that is on this device, from which each backward stage takes its
    /// input.
    across: BTreeMap<StageId, (Across, Entity)>,
    /// The same of loaded weights, with the touch that they were copied through.
    loaded: BTreeSet<(u32, u32, u32)>,
}

impl Sources {
    fn new(program: &Program) -> Self {
        let regions =
            program.functions.values().map(|row| vec![RegionSource::default(); row.params.len()]).collect();
        Self {
            regions,
            sent: BTreeMap::new(),
            weights: BTreeSet::new(),
            across: BTreeMap::new(),
            loaded: BTreeSet::new(),
        }
    }

    fn of(&mut self, function: FunctionId, param: ParamId) -> &mut RegionSource {
        &mut self.regions[function][param.index()]
    }
}

struct Replay<'a, 'g, 'r> {
    program: &'a Program,
    touches: &'a Touches,
    memory: Memory<'a>,
    units: Units,
    accounts: Accounts<'g, 'g>,
    sources: Sources,
    rows: Rows,
    clocks: Clocks,
    /// How many instructions of each queue have finished.
    at: IdVec<QueueId, Position>,
    /// Queues that wait for a position of each queue, least position first.
    waiters: IdVec<QueueId, BinaryHeap<Reverse<(Position, QueueId)>>>,
    channels: IdVec<ChannelId, ChannelState>,
    /// The queues that have arrived at a reduction.
    groups: IdVec<GroupId, Vec<QueueId>>,
    ready: Vec<QueueId>,
    report: &'r mut Report,
}

impl Replay<'_, '_, '_> {
    /// Runs a queue until it is blocked or done.
    fn advance(&mut self, queue: QueueId) {
        let program = self.program;
        while let Some(instruction) = program.queues[queue].instructions.get(self.at[queue] as usize) {
            match instruction {
                Instruction::Wait { queue: other, position } => {
                    if self.at[*other] < *position {
                        self.waiters[*other].push(Reverse((*position, queue)));
                        return;
                    }
                    self.clocks.join(queue, *other, *position, self.at[queue] + 1);
                    self.done(queue);
                }
                Instruction::Send { channel, .. } => {
                    if !self.send(queue, *channel) {
                        return;
                    }
                }
                Instruction::Recv { channel, .. } => {
                    if !self.receive(queue, *channel) {
                        return;
                    }
                }
                Instruction::Reduce { group, .. } => {
                    if !self.reduce(queue, *group) {
                        return;
                    }
                }
                Instruction::Run { .. } | Instruction::Copy { .. } | Instruction::Fill { .. } => {
                    self.execute(queue);
                    self.done(queue);
                }
            }
        }
    }

    /// An instruction of a queue has finished: wakes who waits for it.
    fn done(&mut self, queue: QueueId) {
        self.at[queue] += 1;
        while let Some(&Reverse((position, waiter))) = self.waiters[queue].peek() {
            if position > self.at[queue] {
                break;
            }
            self.waiters[queue].pop();
            self.ready.push(waiter);
        }
    }

    /// Whether the send went through.
    fn send(&mut self, queue: QueueId, channel: ChannelId) -> bool {
        let capacity = u64::from(self.program.channels[channel].capacity);
        let state = &mut self.channels[channel];
        if capacity == 0 {
            let Some(receiver) = state.receiver.take() else {
                state.sender = Some(queue);
                return false;
            };
            self.execute(queue);
            self.execute(receiver);
            self.done(queue);
            self.done(receiver);
            self.ready.push(receiver);
            return true;
        }
        if state.sent - state.received >= capacity {
            state.sender = Some(queue);
            return false;
        }
        state.sent += 1;
        let woken = state.receiver.take();
        self.execute(queue);
        self.done(queue);
        self.ready.extend(woken);
        true
    }

    /// Whether the receive went through.
    fn receive(&mut self, queue: QueueId, channel: ChannelId) -> bool {
        let capacity = self.program.channels[channel].capacity;
        let state = &mut self.channels[channel];
        if capacity == 0 {
            let Some(sender) = state.sender.take() else {
                state.receiver = Some(queue);
                return false;
            };
            self.execute(sender);
            self.execute(queue);
            self.done(sender);
            self.done(queue);
            self.ready.push(sender);
            return true;
        }
        if state.sent == state.received {
            state.receiver = Some(queue);
            return false;
        }
        state.received += 1;
        let woken = state.sender.take();
        self.execute(queue);
        self.done(queue);
        self.ready.extend(woken);
        true
    }

    /// Whether all members met.
    fn reduce(&mut self, queue: QueueId, group: GroupId) -> bool {
        self.groups[group].push(queue);
        if self.groups[group].len() < self.program.groups[group].members.len() {
            return false;
        }
        let mut queues = std::mem::take(&mut self.groups[group]);
        queues.sort_unstable();
        let mut views = Vec::with_capacity(queues.len());
        let (mut is_tie, mut is_norm, mut is_update) = (false, false, false);
        for &member in &queues {
            if let Some(Instruction::Reduce { view, work, .. }) =
                self.program.queues[member].instructions.get(self.at[member] as usize)
            {
                views.push((Entity::Instruction(member, self.at[member]), *view));
                is_tie |= matches!(work, Work::Stage(StepWork::Tie, _) | Work::Step(StepWork::Tie));
                is_norm |= matches!(work, Work::Stage(StepWork::Norm, _) | Work::Step(StepWork::Norm));
                is_update |= matches!(work, Work::Stage(StepWork::Update, _) | Work::Step(StepWork::Update));
            }
        }
        if is_tie {
            self.accounts.meeting(&views, self.report);
        }
        let broadcast = self.program.groups[group].result == Shared::Broadcast;
        if is_update != broadcast
            && let Some(&(place, _)) = views.first()
        {
            self.report.add(place, Rule::Update, "weights are broadcast for an update, and nothing else is");
        } else if is_update {
            let first = self.program.groups[group].members[0];
            self.accounts.broadcast(&views, first, self.report);
        }
        if is_norm {
            squares_meet(&views, &self.memory, self.report);
        }
        for &member in &queues {
            self.execute(member);
            self.done(member);
        }
        self.ready.extend(queues.into_iter().filter(|&member| member != queue));
        true
    }

    /// Does what the next instruction of a queue does to memory and to the accounts.
    fn execute(&mut self, queue: QueueId) {
        let program = self.program;
        let position = self.at[queue];
        let row = &program.queues[queue];
        let Some(instruction) = row.instructions.get(position as usize) else { return };
        let place = Entity::Instruction(queue, position);
        let touches = self.touches;
        let used = touches.of(queue, position);
        let passes = unit::passes(program, instruction);
        for half in passes.into_iter().flatten() {
            self.units.run(place, half.pass, half.unit, self.report);
            for &number in &used[half.views()] {
                self.check_source(place, half.pass, half.unit, number);
            }
        }
        let is_pass = passes[0].is_some();
        if !is_pass {
            let used = Used { place, device: row.device, touches, numbers: used };
            self.accounts.step_work(instruction, used, &self.memory, self.report);
        }
        let made = match instruction {
            Instruction::Run { work, .. } | Instruction::Recv { work, .. } => Made::of(work),
            Instruction::Send { work: Work::Stage(StepWork::Load, stage), .. } => {
                self.check_load(place, *stage, used);
                Made::Other
            }
            Instruction::Send { work, .. } => {
                self.check_sent(place, Made::of(work), used);
                Made::Other
            }
            Instruction::Fill { .. } => Made::Zero,
            // A sum of squares is squares.
            Instruction::Reduce {
                work: Work::Stage(StepWork::Norm, _) | Work::Step(StepWork::Norm), ..
            } => Made::Step(StepWork::Norm),
            Instruction::Reduce { .. } | Instruction::Copy { .. } | Instruction::Wait { .. } => Made::Other,
        };
        let copied = match instruction {
            Instruction::Copy { .. } => Some(self.copied(place, used)),
            Instruction::Run { .. }
            | Instruction::Send { .. }
            | Instruction::Recv { .. }
            | Instruction::Fill { .. }
            | Instruction::Reduce { .. }
            | Instruction::Wait { .. } => None,
        };
        let is_run = matches!(instruction, Instruction::Run { .. });
        let loads = match instruction {
            Instruction::Copy { .. } => true,
            Instruction::Recv { work, .. } => matches!(work, Work::Stage(StepWork::Load, _)),
            Instruction::Run { .. }
            | Instruction::Send { .. }
            | Instruction::Fill { .. }
            | Instruction::Reduce { .. }
            | Instruction::Wait { .. } => false,
        };
        let receives = loads && !matches!(instruction, Instruction::Copy { .. });
        let is_update = matches!(
            instruction,
            Instruction::Run { work: Work::Stage(StepWork::Update, _) | Work::Step(StepWork::Update), .. }
                | Instruction::Reduce {
                    work: Work::Stage(StepWork::Update, _) | Work::Step(StepWork::Update),
                    ..
                }
        );
        let actor = Actor {
            place,
            queue: self.clocks.place[queue] as u32,
            position: position + 1,
            clock: &self.clocks.now[queue],
            queues: &self.clocks.queues[row.device],
        };
        // What a call makes, its passes make, each through its own views.
        let of_half = |half: Half| (half.views(), Made::by(half.pass, half.unit), gradient::adds(half.pass));
        let whole = (!is_pass).then_some((0..used.len(), made, false));
        for (views, made, adds) in passes.map(|half| half.map(of_half)).into_iter().flatten().chain(whole) {
            for &number in &used[views] {
                let touch = &touches.list[number as usize];
                if !is_update && touch.category.is_state() && !touches.writes(touch).is_empty() {
                    let message = format!("writes {}, which only updates may", touch.view.buffer);
                    self.report.add(place, Rule::Update, message);
                }
                let is_load = touch.category == Category::Loaded && !touches.writes(touch).is_empty();
                if is_load != loads && (is_load || receives) {
                    let message = match is_load {
                        true => format!("writes {}, which takes copies of weights only", touch.view.buffer),
                        false => format!(
                            "loads weights into {}, a buffer of {}",
                            touch.view.buffer,
                            touch.category.name()
                        ),
                    };
                    self.report.add(place, Rule::Update, message);
                }
                let contributes = adds && gradient::contributes(touches, touch);
                let maker = copied.unwrap_or(Maker { made, origin: is_run.then_some(number) });
                self.memory.access(actor, touch, maker, contributes, self.report);
            }
        }
    }

    /// What the bytes of a copy are afterwards: of weights and gradients where they come from, of all else what they were,
    /// where they all are the same. Weights are copied before their update, gradients when they are complete.
    fn copied(&mut self, place: Entity, used: &[u32]) -> Maker {
        let &[from, to, ..] = used else { return Maker::OTHER };
        let touch = &self.touches.list[from as usize];
        match touch.category {
            Category::Weights => {
                let is_updated = |made: Made| made == Made::Step(StepWork::Update);
                if self.memory.read(touch).any(|segment| is_updated(segment.maker.made)) {
                    let message = format!("copies weights of {} after their update", touch.view.buffer);
                    self.report.add(place, Rule::Update, message);
                }
                return Maker { made: Made::Copied(from), origin: Some(to) };
            }
            Category::Gradients => {
                self.accounts.leave(place, touch, self.touches, &self.memory, self.report);
                return Maker { made: Made::Copied(from), origin: Some(to) };
            }
            Category::Loaded
            | Category::Optimizer
            | Category::Activations
            | Category::Communication
            | Category::Workspace
            | Category::Data => {}
        }
        let mut makers = self.memory.read(touch).map(|segment| segment.maker);
        match makers.next() {
            Some(first) if makers.all(|maker| maker == first) => first,
            Some(_) | None => Maker::OTHER,
        }
    }

    /// Weights leave for a device before their update, and only those that the stage uses.
    fn check_load(&mut self, place: Entity, stage: StageId, used: &[u32]) {
        let touches = self.touches;
        for touch in used.iter().map(|&number| &touches.list[number as usize]) {
            if touch.category != Category::Weights {
                let (buffer, category) = (touch.view.buffer, touch.category.name());
                self.report.add(place, Rule::Unit, format!("loads {buffer}, a buffer of {category}"));
                continue;
            }
            if self.memory.read(touch).any(|segment| segment.maker.made == Made::Step(StepWork::Update)) {
                let message = format!("loads weights of {} after their update", touch.view.buffer);
                self.report.add(place, Rule::Update, message);
            }
            for &range in touches.reads(touch) {
                self.accounts.loaded_by_stage(place, stage, touch.view.buffer, range, self.report);
            }
        }
    }

    /// A message says who made it; so must its bytes, and a function keeps what it sends in one of its regions.
    fn check_sent(&mut self, place: Entity, declared: Made, used: &[u32]) {
        let touches = self.touches;
        for &number in used {
            let touch = &touches.list[number as usize];
            let mut strange = None;
            let mut other = None;
            for segment in self.memory.read(touch) {
                if segment.maker.made != declared {
                    strange = strange.or(Some(segment.maker.made));
                    continue;
                }
                let Some((producer, region)) = origin(touches, segment.maker) else { continue };
                let Role::Message(channel) = touch.role else { continue };
                let known = self.sources.sent.entry((channel, producer)).or_insert((region, place));
                if known.0 != region {
                    other = other.or(Some((producer, region, *known)));
                }
            }
            if let Some(made) = strange {
                self.report.add(place, Rule::Unit, format!("sends what {made} made as what {declared} made"));
            } else if let Some((producer, region, (before, first))) = other {
                let message = format!("sends {region} of {producer}, but {first} sends {before}");
                self.report.add_related(place, Rule::Unit, message, vec![first]);
            }
        }
    }

    /// Checks what a pass reads against its unit, and against what its function read before.
    fn check_source(&mut self, place: Entity, pass: Pass, unit: Unit, number: u32) {
        let touches = self.touches;
        let touch = &touches.list[number as usize];
        let Role::Param(function, param) = touch.role else { return };
        match touch.category {
            Category::Weights => {
                if self.sources.weights.insert((number, unit.stage.0)) {
                    self.accounts.weights_of_stage(place, unit, touches, touch, self.report);
                }
            }
            Category::Loaded => self.check_loaded(place, unit, number),
            Category::Optimizer => {
                self.report.add(
                    place,
                    Rule::Unit,
                    format!("a pass reads {}, optimizer state", touch.view.buffer),
                );
            }
            Category::Gradients => {
                if touches.writes(touch).is_empty() {
                    self.report.add(
                        place,
                        Rule::Unit,
                        format!("a pass reads {}, gradients", touch.view.buffer),
                    );
                }
            }
            Category::Data => self.check_rows(place, unit, touch),
            Category::Activations | Category::Communication | Category::Workspace => {}
        }
        let follows = match touch.category {
            Category::Activations | Category::Communication | Category::Data => true,
            Category::Weights
            | Category::Loaded
            | Category::Optimizer
            | Category::Gradients
            | Category::Workspace => false,
        };
        let mut source = None;
        let mut add = |this: Source| {
            source = Some(if source.is_none_or(|source| source == this) { this } else { Source::Several });
        };
        let batch = self.program.batch;
        let mut wrong = None;
        let mut moved = None;
        let mut elsewhere = None;
        if follows {
            let mut previous = None;
            for segment in self.memory.read(touch) {
                if previous == Some(segment.maker) {
                    continue;
                }
                previous = Some(segment.maker);
                let made = segment.maker.made;
                wrong = wrong.or_else(|| memory::misread(batch, pass, unit, made));
                // Backward stages begin at different places of forward stages that have one function: each at one.
                let maker = match made {
                    Made::Forward(by) if batch.is_backward(by.stage) != batch.is_backward(unit.stage) => {
                        Some(by.stage)
                    }
                    Made::Forward(_)
                    | Made::Backward(_)
                    | Made::Other
                    | Made::Zero
                    | Made::Feed(_)
                    | Made::Step(_)
                    | Made::Copied(_)
                    | Made::Loaded(_) => None,
                };
                let across = maker.is_some();
                if let Some(maker) = maker {
                    let from = (maker, origin(touches, segment.maker));
                    let &mut (known, first) = self.sources.across.entry(unit.stage).or_insert((from, place));
                    if known != from {
                        elsewhere = elsewhere.or(Some(first));
                    }
                }
                if let Some((producer, region)) = origin(touches, segment.maker).filter(|_| !across) {
                    let known = self.sources.of(function, param).region_of(producer, region, place);
                    if known.0 != region {
                        moved = moved.or(Some((producer, region, known)));
                    }
                }
                let stages = |by: Unit| i64::from(by.stage.0) - i64::from(unit.stage.0);
                let slices = |by: Unit| i64::from(by.slice.0) - i64::from(unit.slice.0);
                match made {
                    // Sums that grow over slices begin with zeros.
                    Made::Zero if touch.category != Category::Data => {}
                    Made::Other | Made::Step(_) | Made::Copied(_) | Made::Loaded(_) | Made::Zero => {
                        add(Source::Other);
                    }
                    Made::Feed(kind) => add(Source::Feed(kind)),
                    Made::Forward(_) if across => add(Source::Across),
                    Made::Forward(by) => add(Source::Forward(stages(by), slices(by))),
                    Made::Backward(by) => add(Source::Backward(stages(by), slices(by))),
                }
            }
        } else if !touches.reads(touch).is_empty() {
            add(Source::In(touch.category));
        }
        if let Some(message) = wrong {
            self.report.add(place, Rule::Unit, message);
        } else if let Some(first) = elsewhere {
            let message = format!("takes the input of {} from elsewhere than at {first}", unit.stage);
            self.report.add_related(place, Rule::Unit, message, vec![first]);
        } else if let Some((producer, region, (before, first))) = moved {
            let message = format!(
                "{param} of {function} takes {region} of {producer}, but at {first} it takes {before}"
            );
            self.report.add_related(place, Rule::Unit, message, vec![first]);
        } else if let Some(source) = source {
            let (known, first) = *self.sources.of(function, param).source.get_or_insert((source, place));
            if known != source {
                let name = &self.program.functions[function].params[param].name;
                let message = format!("{param} {name:?} of {function} comes from elsewhere than at {first}");
                self.report.add_related(place, Rule::Unit, message, vec![first]);
            }
        }
    }

    /// Loaded weights that a pass reads are copies of weights that its stage uses.
    fn check_loaded(&mut self, place: Entity, unit: Unit, number: u32) {
        let touches = self.touches;
        let touch = &touches.list[number as usize];
        let mut previous = None;
        for segment in self.memory.read(touch) {
            if previous == Some(segment.maker) {
                continue;
            }
            previous = Some(segment.maker);
            if let Made::Loaded(stage) = segment.maker.made
                && stage != unit.stage
            {
                let message = format!("reads weights that were loaded for {stage} in {unit}");
                self.report.add(place, Rule::Unit, message);
            }
            let (Made::Copied(from), Some(to)) = (segment.maker.made, segment.maker.origin) else { continue };
            if !self.sources.loaded.insert((number, unit.stage.0, from)) {
                continue;
            }
            let (source, target) = (touches.list[from as usize].view, touches.list[to as usize].view);
            let end = target.offset + target.bytes;
            for &(start, stop) in touches.reads(touch) {
                let (start, stop) = (start.max(target.offset.0), stop.min(end.0));
                if start < stop {
                    let at = |offset: u64| source.offset.0 + (offset - target.offset.0);
                    let range = (at(start), at(stop));
                    self.accounts.loaded_by_stage(place, unit.stage, source.buffer, range, self.report);
                }
            }
        }
    }

    /// Tokens and losses of a pass stand in the row of its micro-batch.
    fn check_rows(&mut self, place: Entity, unit: Unit, touch: &Touch) {
        let batch = self.program.batch;
        let micro_batch = u64::from(unit.micro_batch.0);
        if let Some(feeds) = self.rows.feeds.get(&touch.view.buffer) {
            // Feeds share no bytes, so that those before the touch end before it too.
            let first = feeds.partition_point(|feed| feed.view.offset + feed.view.bytes <= touch.view.offset);
            let end = touch.view.offset + touch.view.bytes;
            for feed in feeds[first..].iter().take_while(|feed| feed.view.offset < end) {
                let view = feed.view;
                let row = Bytes(view.bytes.0 / u64::from(batch.micro_batches));
                let start = view.offset + row * micro_batch;
                let strange = self.touches.reads(touch).iter().any(|&(first, last)| {
                    let inside = first < (view.offset + view.bytes).0 && view.offset.0 < last;
                    inside && (first < start.0 || last > (start + row).0)
                });
                if strange {
                    let message = format!(
                        "reads {} of another micro-batch than {}",
                        feed.kind.name(),
                        unit.micro_batch
                    );
                    self.report.add(place, Rule::Unit, message);
                }
            }
        }
        if let Some(view) = self.rows.losses.get(&touch.view.buffer) {
            let number = micro_batch * u64::from(batch.slices) + u64::from(unit.slice.0);
            let start = view.offset + Bytes(8) * number;
            let strange = self.touches.writes(touch).iter().any(|&(first, last)| {
                let inside = first < (view.offset + view.bytes).0 && view.offset.0 < last;
                inside && (first < start.0 || last > (start + Bytes(8)).0)
            });
            if strange {
                self.report.add(place, Rule::Unit, format!("writes the loss of another unit than {unit}"));
            }
        }
    }
}

/// The function and the region of a call of this device that made some bytes.
fn origin(touches: &Touches, maker: Maker) -> Option<(FunctionId, ParamId)> {
    match touches.list.get(maker.origin? as usize)?.role {
        Role::Param(function, param) => Some((function, param)),
        Role::Read | Role::Write | Role::Update | Role::Message(_) => None,
    }
}
