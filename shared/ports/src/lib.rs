//! Ports of the functions and the fetcher, as traits: objects, a table, an invoker, the coordinator,
//! a clock. In-memory versions serve tests and simulation; one conformance suite runs over every
//! implementation.

mod buffers;
mod clock;
pub mod conformance;
mod coordinator;
pub mod limits;
pub mod memory;
mod metrics;
mod objects;
mod reads;
mod table;

pub use buffers::{BufferPages, BufferPool, keep_buffer, let_go_buffer, unused_buffers};
pub use clock::{Clock, SystemClock, chance, outlast, time_run};
pub use coordinator::{
    CallError, CallTransport, CallVersion, Coordinator, call_with_retry, encode_call,
};
pub use coordinator::{InvokeError, InvokeOutcome, Invoker};
pub use metrics::{FunctionMetrics, MetricValue};
pub use objects::{
    ChangeStamp, MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    get_long_range,
};
pub use reads::{PrefixRead, PrefixReadLimits, ReadTimeout};
pub use table::{ItemKey, Table, TableError, TableItem, WriteOutcome};

/// The refusal of what only a program with the cargo feature `name` can do, with the remedy.
pub fn without_feature(name: &str) -> String {
    format!(
        "this gristmill was built without the feature `{name}`: build it without --no-default-features"
    )
}
