//! What two snapshots differ in, in the words of pipelines: which passes moved on which device, and what became of
//! makespan, bubble and memory.
//!
//! What both have in equal form is not told, and a part that one of them lacks is not compared.

use super::text::grouped;
use super::{Arena, Order, PassName, Snapshot, Stage, arena_name};
use crate::show::{Table, percent};
use pipec_program::{Bytes, Category, DeviceId, Pass, StageId, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// The most moved passes that are named for a device, and the most lines that are shown of a program.
const MOST: usize = 6;

/// The differences as text, empty where there are none.
pub fn differences(before: &Snapshot, after: &Snapshot) -> String {
    let mut parts = Vec::new();
    if before.title != after.title {
        parts.push(format!("{}\nis now\n{}\n", before.title, after.title));
    }
    if let (Some(before), Some(after)) = (&before.schedule, &after.schedule) {
        parts.push(stages(&before.stages, &after.stages));
        parts.push(order(before, after));
    }
    parts.push(figures(before, after));
    if let (Some(before), Some(after)) = (&before.program, &after.program) {
        parts.push(program(before, after));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// What became of each stage.
fn stages(before: &BTreeMap<StageId, Stage>, after: &BTreeMap<StageId, Stage>) -> String {
    let mut table = Table::new(&["stage", "", "before", "after"]);
    table.left.extend([1, 2, 3]);
    let ids: BTreeSet<&StageId> = before.keys().chain(after.keys()).collect();
    let facts = |stage: Option<&Stage>| match stage {
        Some(Stage { devices, parameters, weights }) => {
            let devices: Vec<String> = devices.iter().map(DeviceId::to_string).collect();
            [devices.join(" "), parameters.clone(), grouped(*weights)]
        }
        None => ["-", "-", "-"].map(str::to_owned),
    };
    for id in ids {
        let facts = facts(before.get(id)).into_iter().zip(facts(after.get(id)));
        for (name, (before, after)) in ["on", "parameters", "weights"].into_iter().zip(facts) {
            if before != after {
                table.row([id.to_string(), name.to_owned(), before, after]);
            }
        }
    }
    table.text_of_rows()
}

/// Which passes moved, came and went on each device.
fn order(before: &Order, after: &Order) -> String {
    let home = |order: &Order| -> BTreeMap<PassName, DeviceId> {
        let each = |(&device, passes): (&DeviceId, &Vec<(u64, PassName)>)| {
            passes.iter().map(move |(_, pass)| (*pass, device)).collect::<Vec<_>>()
        };
        order.passes.iter().flat_map(each).collect()
    };
    let (home_before, home_after) = (home(before), home(after));
    let devices: BTreeSet<DeviceId> = before.passes.keys().chain(after.passes.keys()).copied().collect();
    let names = |order: &Order, device: DeviceId| -> Vec<PassName> {
        order.passes.get(&device).into_iter().flatten().map(|(_, pass)| *pass).collect()
    };
    let mut text = String::new();
    for device in devices {
        let (old, new) = (names(before, device), names(after, device));
        // Passes of one kind and stage come and go together; each group is one line.
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        let mut count = |pass: &PassName, what: String| {
            let of = |(pass, unit): (Pass, Unit)| format!("{} of {}", pass.name(), unit.stage);
            let names: Vec<String> = pass.passes().map(of).collect();
            *groups.entry(format!("{} {what}", names.join(" + "))).or_default() += 1;
        };
        for pass in old.iter().filter(|pass| home_after.get(pass) != Some(&device)) {
            match home_after.get(pass) {
                Some(other) => count(pass, format!("went to {other}")),
                None => count(pass, "gone".to_owned()),
            }
        }
        for pass in new.iter().filter(|pass| home_before.get(pass) != Some(&device)) {
            match home_before.get(pass) {
                Some(other) => count(pass, format!("came from {other}")),
                None => count(pass, "new".to_owned()),
            }
        }
        let moved = moved(&old, &new);
        if groups.is_empty() && moved.is_empty() {
            continue;
        }
        text += &format!("{device}\n");
        for (what, number) in groups {
            text += &format!("    {number} x {what}\n");
        }
        for Moved { pass, before, after } in moved.iter().take(MOST) {
            let neighbour = |previous: &Option<PassName>| match previous {
                Some(previous) => format!("after {previous}"),
                None => "first".to_owned(),
            };
            text += &format!("    {pass} was {}, is {}\n", neighbour(before), neighbour(after));
        }
        if moved.len() > MOST {
            text += &format!("    and {} more passes moved\n", moved.len() - MOST);
        }
    }
    text
}

/// A pass that changed its place among those that did not, and what came right before it.
struct Moved {
    pass: PassName,
    before: Option<PassName>,
    after: Option<PassName>,
}

/// The least passes whose moving makes the new order of a device from the old one, in the new order.
fn moved(old: &[PassName], new: &[PassName]) -> Vec<Moved> {
    let places: BTreeMap<PassName, usize> = old.iter().copied().zip(0..).collect();
    let common: Vec<(PassName, usize)> =
        new.iter().filter_map(|pass| Some((*pass, *places.get(pass)?))).collect();
    let kept = longest_ascending(&common.iter().map(|(_, place)| *place).collect::<Vec<_>>());
    let previous =
        |order: &[PassName], place: usize| place.checked_sub(1).and_then(|place| order.get(place)).copied();
    let new_places: BTreeMap<PassName, usize> = new.iter().copied().zip(0..).collect();
    let moved = common.into_iter().filter(|(_, place)| !kept.contains(place));
    moved
        .map(|(pass, place)| Moved {
            pass,
            before: previous(old, place),
            after: new_places.get(&pass).and_then(|&place| previous(new, place)),
        })
        .collect()
}

/// The numbers of a longest ascending subsequence of distinct numbers.
fn longest_ascending(numbers: &[usize]) -> BTreeSet<usize> {
    // The positions of the least last numbers of ascending subsequences by length, and what stands before each.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(numbers.len());
    for (position, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|&end| numbers[end] < *number);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = position,
            None => ends.push(position),
        }
    }
    let mut kept = BTreeSet::new();
    let mut next = ends.last().copied();
    while let Some(position) = next {
        kept.insert(numbers[position]);
        next = before[position];
    }
    kept
}

/// Makespan, bubble and memory, as far as they changed.
fn figures(before: &Snapshot, after: &Snapshot) -> String {
    let mut table = Table::new(&["", "before", "after", "change"]);
    if before.makespan != after.makespan {
        table.row(row("makespan", before.makespan, after.makespan, before.makespan.0, after.makespan.0));
    }
    let devices: BTreeSet<DeviceId> = before.busy.keys().chain(after.busy.keys()).copied().collect();
    let all = (devices.len() > 1).then_some(None).into_iter();
    for device in all.chain(devices.iter().copied().map(Some)) {
        let there = |snapshot: &Snapshot| device.is_none_or(|device| snapshot.busy.contains_key(&device));
        let bubble = |snapshot: &Snapshot| there(snapshot).then(|| snapshot.bubble(device));
        let (old, new) = (bubble(before), bubble(after));
        let shown = |bubble: Option<f64>| bubble.map_or("-".to_owned(), percent);
        let name = device.map_or("bubble".to_owned(), |device| format!("{device} bubble"));
        if shown(old) != shown(new) {
            let change = match (old, new) {
                (Some(old), Some(new)) => format!("{:+.1} points", 100.0 * (new - old)),
                (Some(_), None) | (None, Some(_)) | (None, None) => String::new(),
            };
            table.row([name, shown(old), shown(new), change]);
        }
        let busy = |snapshot: &Snapshot| device.and_then(|device| snapshot.busy.get(&device).copied());
        if let (Some(device), Some(old), Some(new)) = (device, busy(before), busy(after))
            && old != new
        {
            table.row(row(&format!("{device} busy"), old, new, old.0, new.0));
        }
    }
    if let (Some(old), Some(new)) = (&before.memory, &after.memory) {
        let arenas: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for key in arenas {
            arena(&mut table, &arena_name(*key), old.get(key), new.get(key));
        }
    }
    table.text_of_rows()
}

/// The rows of an arena: what it takes, and each category that lives at the peak.
fn arena(table: &mut Table, name: &str, before: Option<&Arena>, after: Option<&Arena>) {
    let (Some(before), Some(after)) = (before, after) else {
        let shown = |arena: Option<&Arena>| arena.map_or("-".to_owned(), |arena| arena.size.to_string());
        table.row([format!("{name} arena"), shown(before), shown(after), String::new()]);
        return;
    };
    let total = |arena: &Arena| arena.live.iter().copied().sum::<Bytes>();
    let mut compare = |what: &str, old: Bytes, new: Bytes| {
        if old != new {
            table.row(row(&format!("{name} {what}"), old, new, old.0, new.0));
        }
    };
    compare("arena", before.size, after.size);
    compare("peak live", total(before), total(after));
    for ((category, &old), &new) in Category::ALL.iter().zip(&before.live).zip(&after.live) {
        compare(category.name(), old, new);
    }
    if before.peak != after.peak {
        table.row([format!("{name} peak at"), before.peak.clone(), after.peak.clone(), String::new()]);
    }
}

/// A row of a quantity: rounded for people, with the change in per cent; exact where rounding hides the change.
fn row<Q: ToString>(name: &str, old: Q, new: Q, old_exact: u64, new_exact: u64) -> [String; 4] {
    let (mut before, mut after) = (old.to_string(), new.to_string());
    if before == after {
        (before, after) = (grouped(old_exact), grouped(new_exact));
    }
    let change = match old_exact {
        0 => String::new(),
        _ => format!("{:+.1} %", 100.0 * (new_exact as f64 - old_exact as f64) / old_exact as f64),
    };
    [name.to_owned(), before, after, change]
}

/// The first lines of a program that differ.
fn program(before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let (mut old, mut new) = (old[..old.len() - end].to_vec(), new[..new.len() - end].to_vec());
    // Lines that were changed one by one are told without those between them that were not.
    if old.len() == new.len() {
        (old, new) = old.into_iter().zip(new).filter(|(old, new)| old != new).unzip();
    }
    let mut text = format!("program, from line {} on\n", start + 1);
    for (sign, lines) in [('-', old), ('+', new)] {
        for line in lines.iter().take(MOST) {
            text += &format!("    {sign} {line}\n");
        }
        if lines.len() > MOST {
            text += &format!("    {sign} and {} more lines\n", lines.len() - MOST);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::longest_ascending;

    #[test]
    fn longest_ascending_subsequences() {
        let kept = |numbers: &[usize]| longest_ascending(numbers).into_iter().collect::<Vec<_>>();
        assert!(kept(&[]).is_empty());
        assert_eq!(kept(&[0, 1, 2]), [0, 1, 2]);
        assert_eq!(kept(&[3, 0, 1, 2]), [0, 1, 2]);
        assert_eq!(kept(&[0, 3, 1, 2, 4]), [0, 1, 2, 4]);
        assert_eq!(kept(&[2, 1, 0]).len(), 1);
        assert_eq!(kept(&[5, 1, 6, 2, 7, 3, 8, 4, 9]).len(), 5);
    }
}
