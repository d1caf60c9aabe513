//! Modes of the epochs: a strip above the charts, a tint behind them, and the reasons in words.

use super::axis::PixelCoordinate;
use super::chart::{ChartGeometry, WIDTHS};
use super::scene::{EpochSpan, TimelineScene};
use super::words::{epochs, shown, width_px};
use maud::{Markup, html};

/// Consecutive epochs in one mode.
pub(super) struct ModeBand {
    first: u32,
    last: u32,
    word: &'static str,
    mode: String,
    /// Reasons as (first epoch, last epoch, text).
    reasons: Vec<(u32, u32, String)>,
    from_s: f64,
    to_s: f64,
}

const MODES_PX: f64 = 24.0;
/// Height of the strip; the epochs' numbers are below the modes.
const STRIP_PX: f64 = 42.0;
/// Least width of an epoch with separators.
const EPOCH_MIN_PX: f64 = 5.0;
/// Distance between two epoch numbers.
const NUMBER_APART_PX: f64 = 8.0;
/// Narrower bands are invisible.
const BAND_MIN_PX: f64 = 0.5;

/// Groups the epochs by mode.
pub(super) fn bands(scene: &TimelineScene<'_>) -> Vec<ModeBand> {
    let mut bands: Vec<ModeBand> = Vec::new();
    for EpochSpan { epoch, from_s, to_s } in &scene.epochs {
        let number = epoch.epoch;
        let mode = shown(&epoch.mode.to_string());
        match bands.last_mut() {
            Some(band) if band.mode == mode => {
                band.last = number;
                band.to_s = *to_s;
            }
            _ => bands.push(ModeBand {
                first: number,
                last: number,
                word: epoch.mode.word(),
                mode,
                reasons: Vec::new(),
                from_s: *from_s,
                to_s: *to_s,
            }),
        }
        let Some(band) = bands.last_mut().filter(|_| !epoch.reason.is_empty()) else { continue };
        let reason = shown(&epoch.reason);
        match band.reasons.last_mut() {
            Some((_, last, before)) if *before == reason => *last = number,
            _ => band.reasons.push((number, number, reason)),
        }
    }
    bands
}

/// The strip, with a label in every band wide enough.
pub(super) fn strip(scene: &TimelineScene<'_>, bands: &[ModeBand]) -> Markup {
    html! {
        @if !bands.is_empty() {
            figure class="chart strip" {
                figcaption { h3 { "Epochs and their modes" } }
                @for (class, width) in WIDTHS {
                    @let frame = ChartGeometry::new(width, scene.end_s);
                    svg class={ (class) " plot" } viewBox={ "0 0 " (PixelCoordinate(width)) " " (PixelCoordinate(STRIP_PX)) }
                        role="img" aria-label="epochs and their modes over time"
                        data-left=(PixelCoordinate(frame.left)) data-right=(PixelCoordinate(frame.right)) {
                        text class="tick" x=(PixelCoordinate(frame.left - 6.0)) y="16" text-anchor="end" { "mode" }
                        text class="tick" x=(PixelCoordinate(frame.left - 6.0)) y="38" text-anchor="end" { "epoch" }
                        @for band in bands { (in_strip(&frame, band)) }
                        (numbers(scene, &frame))
                        line class="cross" x1="0" x2="0" y1="0" y2=(PixelCoordinate(STRIP_PX)) visibility="hidden" {}
                    }
                }
                (reasons(bands))
            }
        }
    }
}

fn in_strip(frame: &ChartGeometry, band: &ModeBand) -> Markup {
    let (from, to) = (frame.x(band.from_s), frame.x(band.to_s));
    let labels = [band.mode.as_str(), band.word];
    let label = labels.into_iter().find(|label| width_px(label) <= to - from - 6.0);
    html! {
        @if to - from >= BAND_MIN_PX {
            rect class={ "m-" (band.word) } x=(PixelCoordinate(from)) y="0" width=(PixelCoordinate(to - from))
                height=(PixelCoordinate(MODES_PX)) {
                title {
                    (epochs(band.first, band.last)) ": " (band.mode)
                    @if let Some((_, _, reason)) = band.reasons.first() { "; " (reason) }
                }
            }
        }
        @if to - from >= EPOCH_MIN_PX {
            line class="apart" x1=(PixelCoordinate(from)) x2=(PixelCoordinate(from)) y1="0" y2=(PixelCoordinate(MODES_PX)) {}
        }
        @if let Some(label) = label {
            text class="band" x=(PixelCoordinate((from + to) / 2.0)) y="16" text-anchor="middle" { (label) }
        }
    }
}

/// Separators and numbers of the epochs. Narrow epochs are numbered at intervals, without separators.
fn numbers(scene: &TimelineScene<'_>, frame: &ChartGeometry) -> Markup {
    let widest = scene.epochs.iter().map(|span| width_px(&span.epoch.epoch.to_string()));
    let slot = (frame.right - frame.left) / scene.epochs.len().max(1) as f64;
    let apart = slot >= widest.fold(0.0, f64::max) + NUMBER_APART_PX;
    let mut free_px = frame.left;
    let mut places = Vec::new();
    for span in &scene.epochs {
        let (from, to) = (frame.x(span.from_s), frame.x(span.to_s));
        let number = span.epoch.epoch.to_string();
        let (middle, half) = ((from + to) / 2.0, width_px(&number) / 2.0);
        let inside = !apart || to - from >= 2.0 * half + NUMBER_APART_PX / 2.0;
        let room = inside && middle - half >= free_px && middle + half <= frame.width;
        if room {
            free_px = middle + half + NUMBER_APART_PX;
        }
        let line = apart && to - from >= EPOCH_MIN_PX;
        places.push((line.then_some(from), room.then_some((middle, number))));
    }
    html! {
        @for (from, number) in places {
            @if let Some(from) = from {
                line class="tick" x1=(PixelCoordinate(from)) x2=(PixelCoordinate(from)) y1=(PixelCoordinate(MODES_PX + 2.0)) y2=(PixelCoordinate(STRIP_PX)) {}
            }
            @if let Some((middle, number)) = number {
                text class="tick" x=(PixelCoordinate(middle)) y="38" text-anchor="middle" { (number) }
            }
        }
    }
}

/// The modes' colours behind a chart.
pub(super) fn tint(frame: &ChartGeometry, bands: &[ModeBand], top: f64, bottom: f64) -> Markup {
    html! {
        @for band in bands {
            @let (from, to) = (frame.x(band.from_s), frame.x(band.to_s));
            @if to - from >= BAND_MIN_PX {
            rect class={ "tint m-" (band.word) } x=(PixelCoordinate(from)) y=(PixelCoordinate(top)) width=(PixelCoordinate(to - from))
                height=(PixelCoordinate(bottom - top)) {}
            }
        }
    }
}

/// Bands and reasons listed; further reasons of one band differ only in their numbers.
const BANDS_MAX: usize = 30;
const REASONS_MAX: usize = 4;

fn reasons(bands: &[ModeBand]) -> Markup {
    html! {
        ul class="modes" {
            @for band in bands.iter().take(BANDS_MAX) {
                li {
                    span class={ "swatch area m-" (band.word) } {}
                    b { (epochs(band.first, band.last)) ": " (band.mode) }
                    @match band.reasons.as_slice() {
                        [] => {},
                        // A single reason applies to the whole band.
                        [(_, _, reason)] => { " \u{2013} " (reason) },
                        several => {
                            @for (first, last, reason) in several.iter().take(REASONS_MAX) {
                                br; span class="note" { (epochs(*first, *last)) ": " } (reason)
                            }
                            @if several.len() > REASONS_MAX {
                                br; span class="note" {
                                    (several.len() - REASONS_MAX) " more reasons are left out."
                                }
                            }
                        },
                    }
                }
            }
            @if bands.len() > BANDS_MAX {
                li class="note" { (bands.len() - BANDS_MAX) " more changes of mode are left out." }
            }
        }
    }
}
