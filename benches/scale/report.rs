//! Figures of several sizes side by side: a table in Markdown, and a plot.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::figures::{Figure, Kind};
use super::shape::Shape;

/// What a figure may grow by when there is ten times as much, from the smallest store to the largest. What is linear grows by
/// 10; a tree of pages gets a level in two decades. The rest is for noise, and for caches that hold less of it.
const MAX_GROWTH: f64 = 2.0;

/// Bytes of the index that a xorb may take without its chunk hashes, and with them.
const XORB_BOUNDS: (f64, f64) = (12.0 * 1024.0, 48.0 * 1024.0);

/// Tables and indexes that are about xorbs alone, beside their chunk hashes.
const XORB_TABLES: [&str; 7] = [
    "xorbs",
    "sqlite_autoindex_xorbs_1",
    "xorbs_unfinished",
    "xorbs_life",
    "xorbs_verified",
    "xorbs_damaged",
    "xorb_domains",
];

/// The figures of one size.
pub(crate) struct Size {
    pub(crate) xorb_count: u64,
    values: Value,
}

/// What is kept of a measurement.
pub(crate) fn to_json(shape: Shape, figures: &[Figure], sizes: &BTreeMap<String, u64>) -> Value {
    let figures: Vec<Value> = figures
        .iter()
        .map(|figure| {
            let mut value = figure.json();
            value["is_latency"] = (figure.kind == Kind::Latency).into();
            value
        })
        .collect();
    let (xorb_count, file_count) = (shape.xorb_count, shape.file_count());
    json!({ "xorbs": xorb_count, "files": file_count, "stride": shape.stride, "figures": figures, "bytes": sizes })
}

impl Size {
    pub(crate) fn new(values: Value) -> Self {
        Self { xorb_count: values["xorbs"].as_u64().unwrap(), values }
    }

    pub(crate) const fn values(&self) -> &Value {
        &self.values
    }

    fn figures(&self) -> impl Iterator<Item = &Value> {
        self.values["figures"].as_array().unwrap().iter()
    }

    fn figure(&self, name: &str) -> Option<&Value> {
        self.figures().find(|figure| figure["name"] == name)
    }

    /// Bytes per xorb: of the xorb alone, of everything but chunk hashes, of chunk hashes where every xorb has them.
    fn bytes(&self) -> (f64, f64, Option<f64>) {
        let (mut own, mut others, mut hashes) = (0, 0, 0);
        for (name, len) in self.values["bytes"].as_object().unwrap() {
            let len = len.as_u64().unwrap();
            match name.as_str() {
                "xorb_chunks" => hashes += len,
                name if XORB_TABLES.contains(&name) => own += len,
                _ => others += len,
            }
        }
        let each = |len: u64| len as f64 / self.xorb_count as f64;
        (each(own), each(own + others), (self.values["stride"] == 1).then_some(each(hashes)))
    }
}

/// The table, and whether every bound is met and nothing grows more than it may.
pub(crate) fn table(sizes: &[Size]) -> (String, bool) {
    let mut table = "| what |".to_owned();
    let mut is_met = true;
    sizes.iter().for_each(|size| write!(table, " {} xorbs |", power(size.xorb_count)).unwrap());
    table.push_str(" growth per decade | bound | met |\n|---|");
    sizes.iter().for_each(|_| table.push_str("---|"));
    table.push_str("---|---|---|\n");
    let Some(last) = sizes.last() else { return (table, is_met) };
    for figure in last.figures() {
        let (name, unit) = (figure["name"].as_str().unwrap(), figure["unit"].as_str().unwrap());
        let cell = |size: &Size| {
            let value = |key| size.figure(name).and_then(|figure| figure[key].as_f64());
            let (Some(median), Some(p99)) = (value("median"), value("p99")) else { return "–".to_owned() };
            if value("samples") == Some(1.0) { short(median) } else { format!("{} ({})", short(median), short(p99)) }
        };
        let medians: Vec<(u64, f64)> =
            sizes.iter().filter_map(|size| Some((size.xorb_count, size.figure(name)?["median"].as_f64()?))).collect();
        let (growth, is_flat) = growth(&medians);
        let bound = figure["bound"].as_f64();
        let is_within = bound.is_none_or(|bound| medians.iter().all(|(_, median)| *median <= bound));
        let cells: Vec<String> = sizes.iter().map(cell).collect();
        let bound = bound.map_or("–".to_owned(), |bound| format!("{} {unit}", short(bound)));
        let met = response(is_flat, is_within);
        writeln!(table, "| {name}, {unit} | {} | {growth} | {bound} | {met} |", cells.join(" | ")).unwrap();
        is_met &= is_flat && is_within;
    }
    is_met &= write_bytes(&mut table, sizes);
    (table, is_met)
}

fn write_bytes(table: &mut String, sizes: &[Size]) -> bool {
    let hashes = sizes.iter().rev().find_map(|size| size.bytes().2);
    let (without, with) = XORB_BOUNDS;
    type Bytes<'s> = Box<dyn Fn(&Size) -> f64 + 's>;
    let rows: [(&str, Bytes<'_>, f64); 4] = [
        ("bytes of index per xorb, without files and chunk hashes", Box::new(|size| size.bytes().0), without),
        ("the same with chunk hashes", Box::new(|size| size.bytes().0 + hashes.unwrap_or(0.0)), with),
        ("with ten files, without chunk hashes", Box::new(|size| size.bytes().1), without),
        ("with ten files and chunk hashes", Box::new(|size| size.bytes().1 + hashes.unwrap_or(0.0)), with),
    ];
    let mut are_met = true;
    for (name, bytes, bound) in rows {
        let values: Vec<(u64, f64)> = sizes.iter().map(|size| (size.xorb_count, bytes(size))).collect();
        let (growth, is_flat) = growth(&values);
        let is_within = values.iter().all(|(_, bytes)| *bytes <= bound);
        let cells: Vec<String> = values.iter().map(|(_, bytes)| format!("{bytes:.0}")).collect();
        let met = response(is_flat, is_within);
        writeln!(table, "| {name} | {} | {growth} | {bound:.0} | {met} |", cells.join(" | ")).unwrap();
        are_met &= is_flat && is_within;
    }
    are_met
}

fn response(is_flat: bool, is_within: bool) -> &'static str {
    match (is_flat, is_within) {
        (true, true) => "yes",
        (false, true) => "no, grows",
        (_, false) => "no",
    }
}

/// By how much a value grows from one size to the next, for ten times as many xorbs, and whether that is little enough.
fn growth(values: &[(u64, f64)]) -> (String, bool) {
    let ratios: Vec<f64> = values
        .windows(2)
        .map(|pair| {
            let decades = (pair[1].0 as f64 / pair[0].0 as f64).log10();
            (pair[1].1 / pair[0].1).powf(1.0 / decades)
        })
        .collect();
    let written: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp();
    (written.join(", "), mean <= MAX_GROWTH)
}

fn power(count: u64) -> String {
    match count {
        1_000 => "10³".to_owned(),
        10_000 => "10⁴".to_owned(),
        100_000 => "10⁵".to_owned(),
        1_000_000 => "10⁶".to_owned(),
        _ => count.to_string(),
    }
}

/// A number with two or three digits that say something.
fn short(value: f64) -> String {
    match value {
        ..1.0 => format!("{value:.2}"),
        ..10.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The medians of all latencies over the number of xorbs, both axes logarithmic.
pub(crate) fn plot(sizes: &[Size]) -> String {
    const COLORS: [&str; 8] = ["#1b6ca8", "#c0392b", "#27805b", "#8e44ad", "#b9770e", "#117a8b", "#7f3f3f", "#555555"];
    let (width, height, left, top) = (980.0, 640.0, 70.0, 40.0);
    let (plot_width, plot_height) = (520.0, 540.0);
    let log = |count: u64| (count as f64).log10();
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return String::new() };
    let span = (log(last.xorb_count) - log(first.xorb_count)).max(1.0);
    let across = |count: u64| left + (log(count) - log(first.xorb_count)) / span * plot_width;
    // From 10 µs to 10 s.
    let down = |micros: f64| top + (7.0 - micros.log10().clamp(1.0, 7.0)) / 6.0 * plot_height;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"15\">Medians over the number of xorbs; ten files for each</text>\n"
    );
    for (exponent, label) in (1..=7).zip(["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]) {
        let y = down(10_f64.powi(exponent));
        let (right, edge, text) = (left + plot_width, left - 8.0, y + 4.0);
        writeln!(svg, "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#dddddd\"/>").unwrap();
        writeln!(svg, "<text x=\"{edge}\" y=\"{text:.1}\" text-anchor=\"end\">{label}</text>").unwrap();
    }
    for size in sizes {
        let (x, y, label) = (across(size.xorb_count), top + plot_height + 22.0, power(size.xorb_count));
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>").unwrap();
    }
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for figure in last.figures().filter(|figure| figure["is_latency"] == true) {
        let name = figure["name"].as_str().unwrap();
        let scale = if figure["unit"] == "ms" { 1e3 } else { 1.0 };
        let place = |size: &Size| Some((across(size.xorb_count), down(size.figure(name)?["median"].as_f64()? * scale)));
        lines.push((name, sizes.iter().filter_map(place).collect()));
    }
    lines.sort_by(|(_, one), (_, other)| one[one.len() - 1].1.total_cmp(&other[other.len() - 1].1));
    let mut free = top;
    for ((name, points), color) in lines.iter().zip(COLORS.iter().cycle()) {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (end, y) = points[points.len() - 1];
        // Names below each other, where several lines end at one place.
        free = (free + 15.0).max(y);
        let (elbow, text, base) = (end + 30.0, end + 34.0, free + 4.0);
        writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>", path.join(" "))
            .unwrap();
        writeln!(svg, "<path d=\"M{end:.1} {y:.1}L{elbow:.1} {free:.1}\" stroke=\"{color}\" stroke-width=\"0.5\"/>")
            .unwrap();
        writeln!(svg, "<text x=\"{text:.1}\" y=\"{base:.1}\" fill=\"{color}\">{name}</text>").unwrap();
    }
    svg.push_str("</svg>\n");
    svg
}
