//! Local search: neighbours on the critical path change places, under the cap, by simulated annealing.
//!
//! Passes of one kind and stage keep their order, so that gradients still accumulate in it. It polishes what the
//! constructions leave over; alone it would gain little.

use super::super::memory::change;
use super::super::{Problem, Schedule, Step};
use super::random::Random;
use super::{Best, Effort, Found};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Pass, Slice, StageId, Unit};

/// Searches from the best order so far.
pub(super) fn search(best: &mut Best<'_>, effort: Effort) {
    let Some(found) = &best.found else { return };
    let Found { schedule, .. } = found;
    let problem = best.problem;
    let mut tables = Tables::new(problem, schedule);
    let tries = (effort.budget() / tables.steps.len().max(1)).min(50_000);
    let mut random = Random::new(2);
    let Some((mut cost, mut critical)) = tables.cost(&mut random) else { return };
    let mut least = cost;
    let caps = problem.caps.clone();
    for tried in 0..tries {
        let Some((device, from, to)) = tables.step(&critical, &mut random) else { continue };
        if !tables.may_move(device, from, to) {
            continue;
        }
        tables.shift(device, from, to);
        let fits = caps.as_ref().is_none_or(|caps| tables.peak(device) <= i128::from(caps[device]));
        let changed = if fits { tables.cost(&mut random) } else { None };
        let warmth = 0.5 * (1.0 - tried as f64 / tries as f64) * tables.slot + 1e-9;
        match changed {
            Some((new, path)) if new <= cost || random.fraction() < ((cost - new) / warmth).exp() => {
                (cost, critical) = (new, path);
                if cost < least {
                    least = cost;
                    best.offer(tables.schedule());
                }
            }
            Some(_) | None => tables.shift(device, to, from),
        }
    }
}

/// What a step needs: the step that makes it, and the time of the message.
type Need = (u32, u64);

/// All steps with what they need, and the order of every device.
struct Tables {
    steps: Vec<Step>,
    device: Vec<DeviceId>,
    duration: Vec<u64>,
    /// Needs of all steps, and where those of each begin.
    needs: Vec<Need>,
    first_need: Vec<u32>,
    /// Memory taken at the start and given back at the end.
    taken: Vec<i128>,
    given: Vec<i128>,
    order: IdVec<DeviceId, Vec<u32>>,
    start: Vec<u64>,
    end: Vec<u64>,
    /// The mean time of a step.
    slot: f64,
}

const NEVER: u64 = u64::MAX;

impl Tables {
    fn new(problem: &Problem, schedule: &Schedule) -> Self {
        let mut steps = Vec::new();
        let mut device = Vec::new();
        let mut order = IdVec::new();
        for (id, of_device) in schedule.devices.iter() {
            order.push((0..of_device.len()).map(|position| (steps.len() + position) as u32).collect());
            steps.extend(of_device.iter().copied());
            device.extend(of_device.iter().map(|_| id));
        }
        let makers = Makers::new(problem, &steps);
        let (mut needs, mut first_need) = (Vec::new(), vec![0]);
        for &step in &steps {
            for (pass, unit) in step.passes() {
                makers.needs(problem, pass, unit, &mut needs);
            }
            first_need.push(needs.len() as u32);
        }
        let changes: Vec<(i128, i128)> = steps.iter().map(|&step| change(problem, step, |_| false)).collect();
        let duration: Vec<u64> = steps.iter().map(|&step| problem.duration(step)).collect();
        let work: f64 = duration.iter().map(|&time| time as f64).sum();
        Self {
            slot: work / steps.len().max(1) as f64,
            start: vec![0; steps.len()],
            end: vec![NEVER; steps.len()],
            taken: changes.iter().map(|change| change.0).collect(),
            given: changes.iter().map(|change| change.1).collect(),
            steps,
            device,
            duration,
            needs,
            first_need,
            order,
        }
    }

    fn needs(&self, step: u32) -> &[Need] {
        &self.needs[self.first_need[step as usize] as usize..self.first_need[step as usize + 1] as usize]
    }

    /// Computes the times of all steps; false at a deadlock.
    fn execute(&mut self) -> bool {
        self.end.fill(NEVER);
        let mut next: IdVec<DeviceId, usize> = self.order.values().map(|_| 0).collect();
        let mut left = self.steps.len();
        while left > 0 {
            let before = left;
            for device in self.order.ids() {
                let mut free = match next[device].checked_sub(1) {
                    Some(last) => self.end[self.order[device][last] as usize],
                    None => 0,
                };
                while let Some(&step) = self.order[device].get(next[device]) {
                    let arrival = |&(maker, delay): &Need| {
                        let end = self.end[maker as usize];
                        if end == NEVER { NEVER } else { end + delay }
                    };
                    let ready = self.needs(step).iter().map(arrival).max().unwrap_or(0);
                    if ready == NEVER {
                        break;
                    }
                    self.start[step as usize] = ready.max(free);
                    free = self.start[step as usize] + self.duration[step as usize];
                    self.end[step as usize] = free;
                    next[device] += 1;
                    left -= 1;
                }
            }
            if left == before {
                return false;
            }
        }
        true
    }

    /// The makespan and a little of the mean end, and the exchanges on a critical path. None at a deadlock.
    fn cost(&mut self, random: &mut Random) -> Option<(f64, Vec<(DeviceId, usize)>)> {
        if !self.execute() {
            return None;
        }
        let last = |steps: &Vec<u32>| steps.last().map_or(0, |&step| self.end[step as usize]);
        let ends: Vec<u64> = self.order.values().map(last).collect();
        let makespan = ends.iter().copied().max().unwrap_or(0);
        let mean = ends.iter().map(|&end| end as f64).sum::<f64>() / ends.len().max(1) as f64;
        Some((makespan as f64 + 1e-4 * mean, self.critical(random)))
    }

    /// Positions of steps on one critical path that wait for nothing but the step before them on their device.
    fn critical(&self, random: &mut Random) -> Vec<(DeviceId, usize)> {
        let mut position = vec![0; self.steps.len()];
        for order in self.order.values() {
            for (at, &step) in order.iter().enumerate() {
                position[step as usize] = at;
            }
        }
        let lasts = self.order.values().filter_map(|order| order.last().copied());
        let mut exchanges = Vec::new();
        let Some(mut step) = lasts.max_by_key(|&step| self.end[step as usize]) else { return exchanges };
        while self.start[step as usize] > 0 {
            let start = self.start[step as usize];
            let device = self.device[step as usize];
            let at = position[step as usize];
            let before = at.checked_sub(1).map(|before| self.order[device][before]);
            let tight = before.filter(|&before| self.end[before as usize] == start);
            let needed =
                self.needs(step).iter().find(|&&(maker, delay)| self.end[maker as usize] + delay == start);
            let needed = needed.map(|&(maker, _)| maker);
            if tight.is_some() {
                exchanges.push((device, at - 1));
            }
            step = match (tight, needed) {
                (Some(before), None) => before,
                (Some(before), Some(_)) if random.below(5) < 3 => before,
                (_, Some(maker)) => maker,
                (None, None) => break,
            };
        }
        exchanges
    }

    /// A move: on a device, the step at one position to another.
    fn step(&self, critical: &[(DeviceId, usize)], random: &mut Random) -> Option<(DeviceId, usize, usize)> {
        if !critical.is_empty() && random.below(5) < 4 {
            let (device, position) = critical[random.below(critical.len())];
            return Some((device, position, position + 1));
        }
        let device = DeviceId::new(random.below(self.order.len()));
        let length = self.order[device].len();
        let from = random.below(length);
        let by = 1 + random.below(4);
        let to = if random.below(2) == 0 { from.saturating_sub(by) } else { from + by };
        let to = to.min(length.saturating_sub(1));
        (from != to).then_some((device, from, to))
    }

    /// Whether a step passes none that must stay in order with it.
    fn may_move(&self, device: DeviceId, from: usize, to: usize) -> bool {
        let order = &self.order[device];
        let Some(&moved) = order.get(from) else { return false };
        let passed = if from < to { order.get(from + 1..=to) } else { order.get(to..from) };
        let moved = self.steps[moved as usize];
        let tied = |other: &u32| {
            let other = self.steps[*other as usize];
            moved.passes().any(|one| other.passes().any(|two| same_kind(one, two)))
        };
        passed.is_some_and(|passed| !passed.iter().any(tied))
    }

    fn shift(&mut self, device: DeviceId, from: usize, to: usize) {
        let order = &mut self.order[device];
        if from < to {
            order[from..=to].rotate_left(1);
        } else {
            order[to..=from].rotate_right(1);
        }
    }

    fn peak(&self, device: DeviceId) -> i128 {
        let (mut held, mut peak) = (0, 0);
        for &step in &self.order[device] {
            held += self.taken[step as usize];
            peak = peak.max(held);
            held -= self.given[step as usize];
        }
        peak
    }

    fn schedule(&self) -> Schedule {
        let steps = |order: &Vec<u32>| order.iter().map(|&step| self.steps[step as usize]).collect();
        Schedule { devices: self.order.values().map(steps).collect() }
    }
}

/// Whether two passes are of one stage and accumulate the same, or of one unit.
fn same_kind((one, a): (Pass, Unit), (two, b): (Pass, Unit)) -> bool {
    let kind = |pass| match pass {
        Pass::F => 0,
        Pass::B | Pass::BW => 1,
        Pass::W => 2,
        Pass::R => 3,
    };
    a.stage == b.stage && kind(one) == kind(two) || a == b
}

/// Which step makes what.
struct Makers {
    forward: Vec<u32>,
    backward: Vec<u32>,
}

impl Makers {
    fn new(problem: &Problem, steps: &[Step]) -> Self {
        let none = vec![0; problem.units()];
        let mut makers = Self { forward: none.clone(), backward: none };
        for (position, step) in (0..).zip(steps) {
            for (pass, unit) in step.passes() {
                match pass {
                    Pass::F => makers.forward[problem.unit_index(unit)] = position,
                    Pass::B | Pass::BW => makers.backward[problem.unit_index(unit)] = position,
                    Pass::W | Pass::R => {}
                }
            }
        }
        makers
    }

    fn needs(&self, problem: &Problem, pass: Pass, unit: Unit, needs: &mut Vec<Need>) {
        let made = |table: &[u32], stage: StageId, slice: Slice| {
            let elsewhere = problem.device(stage) != problem.device(unit.stage);
            let delay = if elsewhere { problem.delay } else { 0 };
            (table[problem.unit_index(Unit { stage, slice, ..unit })], delay)
        };
        match pass {
            Pass::F => {
                needs.extend(problem.before(unit.stage).map(|stage| made(&self.forward, stage, unit.slice)));
                let before = unit.slice.0.checked_sub(1).map(Slice);
                needs.extend(before.map(|slice| made(&self.forward, unit.stage, slice)));
            }
            Pass::B | Pass::BW => {
                needs.push(made(&self.forward, unit.stage, unit.slice));
                needs.extend(problem.after(unit.stage).map(|stage| made(&self.backward, stage, unit.slice)));
                let after = Some(Slice(unit.slice.0 + 1)).filter(|slice| slice.0 < problem.slices());
                needs.extend(after.map(|slice| made(&self.backward, unit.stage, slice)));
            }
            Pass::W => needs.push(made(&self.backward, unit.stage, unit.slice)),
            Pass::R => needs.push(made(&self.forward, unit.stage, unit.slice)),
        }
    }
}
