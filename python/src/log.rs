//! Events of the library as records of Python's `logging`.
//!
//! Threads of tasks only queue events; the thread that holds Python's lock hands them over.

use parking_lot::Mutex;
use pyo3::prelude::*;
use std::{
    collections::VecDeque,
    fmt::Write as _,
    sync::atomic::{AtomicBool, Ordering},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    layer::{Context, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

/// Most events that wait for the trainer's thread; later ones are dropped.
const MOST: usize = 256;
/// Events that are records, unless `RUST_LOG` says otherwise.
const FILTER: &str = "warn,gristmill_client=info,gristmill_serve=info,gristmill_stream=info";

static QUEUE: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());
static IS_FILLED: AtomicBool = AtomicBool::new(false);

struct Queue;

/// The text of an event: its message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber> Layer<S> for Queue {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let mut queue = QUEUE.lock();
        if queue.len() < MOST {
            queue.push_back((*event.metadata().level(), text.message + &text.fields));
            IS_FILLED.store(true, Ordering::Release);
        }
    }
}

/// Queues events from now on, unless this process logs them otherwise.
pub fn begin() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| FILTER.into());
    // It fails only if another subscriber is set, which then has the events.
    let _ = tracing_subscriber::registry().with(Queue.with_filter(filter)).try_init();
}

/// Logs the queued events.
pub fn hand_over(py: Python<'_>) -> PyResult<()> {
    if !IS_FILLED.swap(false, Ordering::Acquire) {
        return Ok(());
    }
    let events = std::mem::take(&mut *QUEUE.lock());
    for (level, text) in events {
        let level = match level {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            _ => "DEBUG",
        };
        say(py, level, &text)?;
    }
    Ok(())
}

/// Logs `text` at `level`, a name of Python's `logging`.
pub fn say(py: Python<'_>, level: &str, text: &str) -> PyResult<()> {
    let logging = py.import("logging")?;
    let logger = logging.call_method1("getLogger", ("gristmill",))?;
    logger.call_method1("log", (logging.getattr(level)?, "%s", text))?;
    Ok(())
}
