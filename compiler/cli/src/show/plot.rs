//! Idle time over memory as one SVG file without scripts: a point per schedule, a stepped line per search.

use std::fmt::Write;

/// A schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// Its peak, in activations of one micro-batch.
    pub memory: f64,
    /// Its idle share.
    pub bubble: f64,
}

/// What a search finds under rising caps.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Memory and idle share, memory ascending.
    pub line: Vec<(f64, f64)>,
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
/// The frame of the axes: left, top, right, bottom.
const FRAME: [f64; 4] = [70.0, 50.0, 700.0, 500.0];
/// Of a point.
const RADIUS: f64 = 3.0;
/// Width of a digit of a label, and its height.
const DIGIT: f64 = 5.4;
const CAPITAL: f64 = 7.0;
/// Where the axes have lines, as far as they reach.
const MEMORY_TICKS: [f64; 11] = [0.05, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0];
const IDLE_TICKS: [f64; 10] = [0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0];
const COLOURS: [&str; 5] = ["#1b6ca8", "#2a9d5c", "#c77d0a", "#a83279", "#6a5acd"];

/// The plot; both axes are logarithmic.
pub fn memory_plot(title: &str, points: &[Point], curves: &[Curve]) -> String {
    let memories = points
        .iter()
        .map(|point| point.memory)
        .chain(curves.iter().flat_map(|curve| curve.line.iter().map(|(memory, _)| *memory)));
    let bubbles = points
        .iter()
        .map(|point| point.bubble)
        .chain(curves.iter().flat_map(|curve| curve.line.iter().map(|(_, bubble)| *bubble)));
    let x = Axis::new(memories, FRAME[0], FRAME[2]);
    let y = Axis::new(bubbles, FRAME[3], FRAME[1]);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"28\" font-size=\"15\">{title}</text>\n",
        FRAME[0]
    );
    let mut add = |line: std::fmt::Arguments<'_>| writeln!(svg, "{line}").expect("text takes all writes");
    for tick in x.ticks(&MEMORY_TICKS) {
        let at = x.at(tick);
        add(format_args!(
            "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#ddd\"/>",
            FRAME[1], FRAME[3]
        ));
        add(format_args!(
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
            FRAME[3] + 16.0
        ));
    }
    for tick in y.ticks(&IDLE_TICKS) {
        let at = y.at(tick);
        add(format_args!(
            "<line x1=\"{}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>",
            FRAME[0], FRAME[2]
        ));
        let percent = super::order::short(100.0 * tick);
        add(format_args!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
            FRAME[0] - 6.0,
            at + 4.0
        ));
    }
    add(format_args!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">memory of the fullest device, in activations of one micro-batch</text>",
        (FRAME[0] + FRAME[2]) / 2.0,
        FRAME[3] + 36.0
    ));
    add(format_args!("<text x=\"{}\" y=\"44\">idle time</text>", FRAME[0]));
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for (position, (memory, bubble)) in curve.line.iter().enumerate() {
            // What fits some memory is as good until the next memory that is better.
            let (x, y) = (x.at(*memory), y.at(*bubble));
            path += &if position == 0 { format!("M{x:.1} {y:.1}") } else { format!(" H{x:.1} V{y:.1}") };
        }
        path += &format!(" H{}", FRAME[2]);
        add(format_args!("<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"));
        let at = FRAME[1] + 14.0 * index as f64;
        add(format_args!(
            "<text x=\"{}\" y=\"{at:.1}\" fill=\"{colour}\">{}</text>",
            FRAME[2] + 12.0,
            curve.name
        ));
    }
    let places: Vec<(f64, f64)> =
        points.iter().map(|point| (x.at(point.memory), y.at(point.bubble))).collect();
    for (index, point) in points.iter().enumerate() {
        let (cx, cy) = places[index];
        add(format_args!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"{RADIUS}\" fill=\"#333\"/>"));
        let at = FRAME[1] + 14.0 * (curves.len() + 1 + index) as f64;
        add(format_args!(
            "<text x=\"{}\" y=\"{at:.1}\">{} {}</text>",
            FRAME[2] + 12.0,
            index + 1,
            point.name
        ));
    }
    for Label { text, left, base, width: _ } in labels(&places) {
        // A seam of white keeps it readable over lines.
        add(format_args!(
            "<text x=\"{left:.1}\" y=\"{base:.1}\" font-size=\"9\" stroke=\"white\" stroke-width=\"2.5\" \
             paint-order=\"stroke\">{text}</text>"
        ));
    }
    svg + "</svg>\n"
}

/// The numbers of points that lie upon each other.
struct Label {
    text: String,
    left: f64,
    /// The line that the digits stand on.
    base: f64,
    width: f64,
}

/// Labels of points by their places: one for all that lie within a circle of each other, where it covers no other point
/// and no other label, if there is such a side.
fn labels(places: &[(f64, f64)]) -> Vec<Label> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let near = |other: &usize| {
            (places[*other].0 - place.0).abs() < RADIUS && (places[*other].1 - place.1).abs() < 3.0 * RADIUS
        };
        match groups.iter_mut().find(|group| group.iter().any(near)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    let mut labels: Vec<Label> = Vec::new();
    for group in groups {
        let text = group.iter().map(|index| (index + 1).to_string()).collect::<Vec<_>>().join(", ");
        let width = DIGIT * text.len() as f64;
        let (x, y) = places[group[0]];
        let sides = [
            (x + RADIUS + 1.0, y - RADIUS),
            (x - RADIUS - 1.0 - width, y - RADIUS),
            (x + RADIUS + 1.0, y + RADIUS + CAPITAL),
            (x - RADIUS - 1.0 - width, y + RADIUS + CAPITAL),
        ];
        let free = |&(left, base): &(f64, f64)| {
            let over_point = |(px, py): &(f64, f64)| {
                left < px + RADIUS
                    && px - RADIUS < left + width
                    && base - CAPITAL < py + RADIUS
                    && py - RADIUS < base
            };
            let over_label = |other: &Label| {
                let apart = left > other.left + other.width || other.left > left + width;
                !apart && (base - other.base).abs() < CAPITAL + 1.0
            };
            left + width < FRAME[2] && !places.iter().any(over_point) && !labels.iter().any(over_label)
        };
        let (left, base) = sides.into_iter().find(free).unwrap_or(sides[0]);
        labels.push(Label { text, left, base, width });
    }
    labels
}

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// Around all positive values.
    fn new(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let values = values.filter(|value| *value > 0.0);
        let (low, high) =
            values.fold((f64::MAX, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
        if low < high {
            Self { low: low / 1.1, high: high * 1.1, start, end }
        } else {
            Self { low: 0.1, high: 1.0, start, end }
        }
    }

    /// The place of a value; what is not positive stands at the start.
    fn at(&self, value: f64) -> f64 {
        let share = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.start + share * (self.end - self.start)
    }

    /// Those of the values that lie on the axis.
    fn ticks(&self, values: &'static [f64]) -> impl Iterator<Item = f64> {
        values.iter().copied().filter(|tick| (self.low..=self.high).contains(tick))
    }
}
