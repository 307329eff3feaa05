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
    for tick in x.ticks() {
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
    for tick in y.ticks() {
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
        add(format_args!("<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"));
        let at = FRAME[1] + 14.0 * index as f64;
        add(format_args!(
            "<text x=\"{}\" y=\"{at:.1}\" fill=\"{colour}\">{}</text>",
            FRAME[2] + 12.0,
            curve.name
        ));
    }
    for (index, point) in points.iter().enumerate() {
        let (cx, cy) = (x.at(point.memory), y.at(point.bubble));
        add(format_args!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"#333\"/>"));
        add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\">{}</text>",
            cx + 4.0,
            cy - 3.0,
            index + 1
        ));
        let at = FRAME[1] + 14.0 * (curves.len() + 1 + index) as f64;
        add(format_args!(
            "<text x=\"{}\" y=\"{at:.1}\">{} {}</text>",
            FRAME[2] + 12.0,
            index + 1,
            point.name
        ));
    }
    svg + "</svg>\n"
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

    fn ticks(&self) -> impl Iterator<Item = f64> {
        const TICKS: [f64; 14] =
            [0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.125, 0.2, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0];
        TICKS.into_iter().filter(|tick| (self.low..=self.high).contains(tick))
    }
}
