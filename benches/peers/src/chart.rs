//! Grouped bars as SVG: one group a case, one bar a pipeline depth, a line where subject and peer
//! are equal. Written by hand because forty lines of text weigh less than a plotting crate.

use std::fmt::Write as _;

/// One group of bars; `None` was not measured and leaves no gap.
pub struct Group {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

const COLORS: [&str; 4] = ["#1b6ca8", "#62a5d1", "#b3d4ea", "#8a8a8a"];
const BAR: f64 = 16.0;
const GAP: f64 = 22.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 240.0;

/// An SVG document. `series` names the bars of each group, in order.
pub fn grouped_bars(title: &str, series: &[String], groups: &[Group]) -> String {
    let highest = groups.iter().flat_map(|group| group.values.iter().flatten());
    // Bars beyond four times the peer are cut off: the rest should stay readable.
    let highest = highest.fold(1.2_f64, |a, &b| a.max(b)).min(4.0);
    // What was not measured takes no room, as long as something was.
    let width_of = |group: &Group| {
        let bars = group.values.iter().flatten().count();
        BAR * bars.max(1) as f64 + GAP
    };
    let width = LEFT + groups.iter().map(width_of).sum::<f64>() + GAP;
    let y = |value: f64| TOP + HEIGHT * (1.0 - value.min(highest) / highest);
    let bottom = TOP + HEIGHT;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n",
        bottom + 110.0,
        escape(title),
    );
    // Writing into a String cannot fail.
    for (at, name) in series.iter().enumerate() {
        let x = LEFT + 80.0 * at as f64;
        let color = COLORS[at % COLORS.len()];
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"37\">{}</text>",
            x + 14.0,
            escape(name),
        );
    }
    let step = if highest > 2.0 { 0.5 } else { 0.2 };
    for line in 0..=(highest / step) as u32 {
        let value = f64::from(line) * step;
        let color = if (value - 1.0).abs() < 1e-9 { "#c0392b" } else { "#ddd" };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{width:.0}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"{color}\"/>\
             <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{value:.1}</text>",
            y(value),
            LEFT - 6.0,
            y(value) + 4.0,
        );
    }
    let mut left = LEFT + GAP / 2.0;
    for group in groups {
        let group_width = width_of(group);
        let measured = group.values.iter().enumerate();
        let measured = measured.filter_map(|(number, value)| Some((number, (*value)?)));
        for (bar, (number, value)) in measured.enumerate() {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">\
                 <title>{} {}: {value:.2}</title></rect>",
                left + BAR * bar as f64,
                y(value),
                BAR - 2.0,
                bottom - y(value),
                COLORS[number % COLORS.len()],
                escape(&group.name),
                escape(series.get(number).map_or("", String::as_str)),
            );
        }
        let x = left + group_width / 2.0 - GAP / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{0:.1}\" text-anchor=\"end\" transform=\"rotate(-40 {x:.1} {0:.1})\">{1}</text>",
            bottom + 14.0,
            escape(&group.name),
        );
        left += group_width;
    }
    svg + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_measured_value_is_a_bar_and_text_is_escaped() {
        let group = Group { name: "a<b".into(), values: vec![Some(0.5), None, Some(9.0)] };
        let series = ["1", "2", "3"].map(String::from);
        let svg = grouped_bars("t", &series, &[group]);
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }
}
