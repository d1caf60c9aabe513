//! The coordinator's calls: the trait of a call, and the list of all.
//!
//! To add a call: declare it, add it to [`for_each_call!`](crate::for_each_call), and implement `Handle` for it in the
//! coordinator. The wire form, the counters and the dispatch follow from the list.

use crate::splits::run::TrainingRun;
use crate::wire::{
    CacheExplainCall, CacheExplainReply, CacheListCall, CacheListReply, CacheRemoveCall,
    CacheRemoveReply, ClaimCall, ClaimReply, DescribeCall, FailCall, FlushCall, ForgetCall,
    ForgetReply, JobStatus, JobView, LeaveCall, MarkCall, PollCall, PollReply, RegisterCall,
    ReleaseCall, SpokenVersions, StatusCall, StopCall,
};
use crate::{JobName, Namespace};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// A call of the coordinator; implemented by the list. Safe to send again: a lost answer never causes a second effect.
pub trait CoordinatorCall:
    Into<AnyCall> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    type Reply: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Name on the wire, in logs and in counters: the variant's name in snake case.
    const NAME: &'static str;

    /// Extracts this call's reply from `reply`.
    ///
    /// # Errors
    /// Returns `reply` if it answers another call.
    fn reply_from(reply: AnyReply) -> Result<Self::Reply, Box<AnyReply>>;
}

/// The list of all calls: passes to the macro `$then` each variant with its call, the field that names the job, the
/// call's name, and its reply.
#[macro_export]
macro_rules! for_each_call {
    ($then:ident) => {
        $then! {
            Register(RegisterCall)[job] "register" JobView
            Describe(DescribeCall)[job] "describe" JobView
            Status(StatusCall)[job] "status" JobStatus
            Stop(StopCall)[job] "stop" JobView
            Forget(ForgetCall)[job] "forget" ForgetReply
            Poll(PollCall)[job] "poll" PollReply
            Claim(ClaimCall)[job] "claim" ClaimReply
            Mark(MarkCall)[lease.job] "mark" AppliedReply
            Flush(FlushCall)[lease.job] "flush" AppliedReply
            Fail(FailCall)[lease.job] "fail" AppliedReply
            Release(ReleaseCall)[job] "release" AppliedReply
            Leave(LeaveCall)[job] "leave" AppliedReply
            CacheList(CacheListCall)[] "cache_list" CacheListReply
            CacheExplain(CacheExplainCall)[] "cache_explain" CacheExplainReply
            CacheRemove(CacheRemoveCall)[] "cache_remove" CacheRemoveReply
        }
    };
}

/// The name of the job that a call is about.
macro_rules! job_of {
    ($call:ident) => {{
        let _ = $call;
        None
    }};
    ($call:ident $($field:tt)+) => {
        Some(&$call.$($field)+)
    };
}

macro_rules! enumerate {
    ($($name:ident($call:ident)[$($job:tt)*] $text:literal $reply:ident)*) => {
        /// Any call, tagged with its name.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "call")]
        pub enum AnyCall {
            $($name($call),)*
        }

        /// The reply to any call, tagged with the name of the call; or a refusal.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "reply")]
        pub enum AnyReply {
            $($name($reply),)*
            Refused(CallRefusal),
        }

        impl AnyCall {
            /// [`CoordinatorCall::NAME`].
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $text,)*
                }
            }

            /// The job that the call is about, if any.
            pub fn job(&self) -> Option<&JobName> {
                match self {
                    $(Self::$name(call) => job_of!(call $($job)*),)*
                }
            }

        }

        impl AnyReply {
            /// The name of the call it answers.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $text,)*
                    Self::Refused(_) => "refused",
                }
            }
        }

        $(
            impl From<$call> for AnyCall {
                fn from(call: $call) -> Self {
                    Self::$name(call)
                }
            }

            impl CoordinatorCall for $call {
                type Reply = $reply;
                const NAME: &'static str = $text;

                fn reply_from(reply: AnyReply) -> Result<$reply, Box<AnyReply>> {
                    match reply {
                        AnyReply::$name(reply) => Ok(reply),
                        other => Err(Box::new(other)),
                    }
                }
            }
        )*

        #[cfg(test)]
        const NAMES: &[(&str, &str)] = &[$((stringify!($name), $text)),*];
    };
}

for_each_call!(enumerate);

impl AnyCall {
    /// Records in a claim that an earlier sending got no answer: it may have taken a lease.
    pub fn note_resent(&mut self) {
        if let Self::Claim(claim) = self {
            claim.resent = true;
        }
    }
}

/// One call, as POSTed: version and tenant first, so that they are checked before all else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallEnvelope {
    pub v: u32,
    pub ns: Namespace,
    #[serde(flatten)]
    pub call: AnyCall,
}

/// The write is applied, now or by an earlier sending of the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedReply {}

/// Why a call had no effect, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CallRefusal {
    pub kind: RefusalKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Another worker has the lease now: drop the work and claim again.
    LeaseLost,
    /// A newer generation of the trainer has registered: stop.
    Fenced,
    /// The reader joins the current run with other ranks or another beginning than it was begun with.
    RunDiffers { run: TrainingRun },
    /// The call is malformed, or differs from what is registered: fix it.
    Invalid,
    /// No such job.
    NotFound,
    /// The job is done, or its batches are visited at most once and those after the cursor were.
    Collected,
    /// A passing fault: send again.
    Busy,
    /// The coordinator's table does not answer: send again.
    TableUnavailable,
    /// The coordinator's table is missing, or denies the coordinator.
    TableRejected,
    /// The coordinator does not speak the version of the call: send it in one that it speaks. Its form never changes, and
    /// peers before version 3 get [`RefusalKind::Invalid`] instead.
    OtherVersion { spoken: SpokenVersions },
}

impl RefusalKind {
    /// Whether sending the same call again may succeed.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Busy | Self::TableUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ClaimReply, IdleReason, IdleReply};

    #[test]
    fn a_call_is_named_like_its_type() {
        for (name, on_wire) in NAMES {
            let mut snake = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            assert_eq!(snake, *on_wire);
        }
    }

    #[test]
    fn calls_and_replies_are_tagged_with_the_name_of_the_call() {
        let job: JobName = "j".parse().unwrap();
        let call = AnyCall::from(StatusCall { job });
        let request = CallEnvelope { v: 7, ns: "a".parse().unwrap(), call };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"v":7,"ns":"a","call":"status","job":"j"}"#);
        assert!(matches!(
            serde_json::from_str::<CallEnvelope>(&text).unwrap().call,
            AnyCall::Status(StatusCall { job }) if job.as_str() == "j"
        ));
        let text = r#"{"v":7,"ns":"a","call":"mark","job":"j","home":{"registered_ms":9,"partition":1},"epoch":2,"bundle":3,"attempt":4,"nonce":"0101010101010101","split_index":5}"#;
        let request = serde_json::from_str::<CallEnvelope>(text).unwrap();
        assert_eq!(request.call.job().map(JobName::as_str), Some("j"));
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        let list = serde_json::from_str::<CallEnvelope>(r#"{"v":7,"ns":"a","call":"cache_list"}"#);
        assert!(matches!(list.unwrap().call, AnyCall::CacheList(_)));
        let reply = AnyReply::Claim(ClaimReply::Idle(IdleReply { reason: IdleReason::Surplus }));
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(text, r#"{"reply":"claim","outcome":"idle","reason":"surplus"}"#);
        let reply = serde_json::from_str::<AnyReply>(&text).unwrap();
        let reply = *MarkCall::reply_from(reply).unwrap_err();
        assert!(matches!(ClaimCall::reply_from(reply), Ok(ClaimReply::Idle(_))));
        let text = serde_json::to_string(&AnyReply::Flush(AppliedReply {})).unwrap();
        assert_eq!(text, r#"{"reply":"flush"}"#);
        assert!(matches!(serde_json::from_str(&text).unwrap(), AnyReply::Flush(AppliedReply {})));
    }
}
