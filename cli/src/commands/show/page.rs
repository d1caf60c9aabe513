//! The page of `gristmill show --html`: a table for each operator, pictures as pictures. It loads nothing.

use super::{ShownStep, values::ShownPicture};
use base64::{Engine, engine::general_purpose::STANDARD};
use std::fmt::Write;

const STYLE: &str = "
.gristmill-show { font: 14px system-ui, sans-serif; color: #222; background: #fff; padding: 8px }
.gristmill-show h3 { margin: 16px 0 4px; font-size: 15px }
.gristmill-show td { padding: 2px 12px 2px 0; vertical-align: top; text-align: left }
.gristmill-show code { font-size: 12px; color: #555 }
.gristmill-show img { display: block; image-rendering: pixelated; max-width: 256px; border: 1px solid #ddd }
";

/// A page, or a part of one: it is valid as both.
pub(super) fn render(title: &str, steps: &[ShownStep], skipped: &[String]) -> String {
    // Writing to a string does not fail.
    let mut out = String::new();
    let _ =
        write!(out, "<meta charset=\"utf-8\"><div class=\"gristmill-show\"><style>{STYLE}</style>");
    let _ = write!(out, "<h2>{}</h2>", escaped(title));
    for step in steps {
        let _ = write!(out, "<h3>{}</h3><table>", escaped(&step.title()));
        let names = step.elements.first().into_iter().flatten();
        let names: String =
            names.map(|value| format!("<td><code>{}</code></td>", escaped(&value.name))).collect();
        let _ = write!(out, "<tr><td></td>{names}</tr>");
        for (number, element) in step.elements.iter().enumerate() {
            let _ = write!(out, "<tr><td>{number}</td>");
            for value in element {
                let picture = value.picture().and_then(|picture| image(&picture));
                let (kind, summary) = (escaped(&value.kind()), escaped(&value.summary()));
                let _ = write!(
                    out,
                    "<td>{}<code>{kind}</code><br>{summary}</td>",
                    picture.unwrap_or_default()
                );
            }
            out.push_str("</tr>");
        }
        out.push_str("</table>");
        if step.elements.is_empty() {
            out.push_str("<p>no element of these records comes this far</p>");
        }
    }
    for sentence in skipped {
        let _ = write!(out, "<p>{}</p>", escaped(sentence));
    }
    out.push_str("</div>\n");
    out
}

/// An `img` that holds its PNG.
fn image(picture: &ShownPicture) -> Option<String> {
    let mut png = Vec::new();
    // In range: sides of pictures are small.
    let mut encoder = png::Encoder::new(&mut png, picture.width as u32, picture.height as u32);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(if picture.channels == 3 {
        png::ColorType::Rgb
    } else {
        png::ColorType::Grayscale
    });
    encoder.write_header().ok()?.write_image_data(&picture.pixels).ok()?;
    Some(format!("<img alt=\"\" src=\"data:image/png;base64,{}\">", STANDARD.encode(png)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
