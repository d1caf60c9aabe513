//! The version in which a process calls one coordinator.

use crate::CallError;
use async_trait::async_trait;
use gristmill_model::wire::protocol::{SpokenVersions, UPGRADE_CALLER, UPGRADE_SERVICE};
use gristmill_model::wire::{AnyCall, AnyReply, CallRefusal, RefusalKind};
use std::sync::atomic::{AtomicU32, Ordering};

/// The way of calls to a coordinator.
#[async_trait]
pub trait CallTransport: Send + Sync {
    /// Sends `call` once in `version` of the protocol, with a deadline. A refusal is an error.
    async fn send(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError>;
}

/// The version of releases that do not say which they speak.
const UNSAID: u32 = 2;

/// The version in which a process calls one coordinator: the newest one at first, and an older one once the coordinator
/// says that it speaks no newer one. It may say so at any time, because a stack may be replaced by the one before.
#[derive(Debug)]
pub struct CallVersion {
    /// The versions that the process speaks.
    spoken: SpokenVersions,
    now: AtomicU32,
}

impl Default for CallVersion {
    fn default() -> Self {
        Self::new(SpokenVersions::BUILD)
    }
}

impl CallVersion {
    /// Speaks the newest version of `spoken` until it is refused.
    pub fn new(spoken: SpokenVersions) -> Self {
        Self { spoken, now: AtomicU32::new(spoken.newest) }
    }

    /// Speaks `version`, or the nearest one that this process speaks, from now on.
    pub fn speak(&self, version: u32) {
        self.now.store(self.spoken.nearest(version), Ordering::Relaxed);
    }

    /// The present version.
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Sends `call` by `transport` in a version that the coordinator speaks.
    ///
    /// # Errors
    /// [`CallError::Rejected`] if there is no such version; those of `transport`.
    pub async fn exchange(
        &self,
        transport: &dyn CallTransport,
        call: &AnyCall,
    ) -> Result<AnyReply, CallError> {
        let tried = self.now();
        let answer = transport.send(call, tried).await;
        match refused(&answer) {
            Some(RefusalKind::OtherVersion { spoken }) => {
                let common = self.spoken.common(spoken).filter(|common| *common != tried);
                let common = common.ok_or_else(|| self.lacking(spoken))?;
                self.now.store(common, Ordering::Relaxed);
                let again = transport.send(call, common).await;
                if let Some(RefusalKind::OtherVersion { .. }) = refused(&again) {
                    // The stack is being replaced: the next attempt finds one or the other.
                    let why = "the coordinator changes its protocol version";
                    return Err(CallError::Unavailable(why.to_owned()));
                }
                again
            }
            // Releases of version 2 call any other version invalid, as they do a call that is wrong: only the same call
            // in version 2 tells them apart.
            Some(RefusalKind::Invalid) if tried > UNSAID && self.spoken.includes(UNSAID) => {
                let again = transport.send(call, UNSAID).await;
                if refused(&again) == Some(RefusalKind::Invalid) {
                    return answer;
                }
                if matches!(again, Ok(_) | Err(CallError::Refused(_))) {
                    self.now.store(UNSAID, Ordering::Relaxed);
                }
                again
            }
            _ => answer,
        }
    }

    /// No version is spoken by this process and by a coordinator with `other`.
    fn lacking(&self, other: SpokenVersions) -> CallError {
        let own = self.spoken;
        let advice = if own.newest > other.newest { UPGRADE_SERVICE } else { UPGRADE_CALLER };
        CallError::Rejected(format!(
            "this gristmill speaks protocol version {own}, the coordinator {other}: {advice}"
        ))
    }
}

fn refused(answer: &Result<AnyReply, CallError>) -> Option<RefusalKind> {
    match answer {
        Err(CallError::Refused(CallRefusal { kind, .. })) => Some(*kind),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::wire::{ForgetCall, ForgetReply, protocol::VERSION};
    use std::sync::Mutex;

    const BOTH: SpokenVersions = SpokenVersions { oldest: 2, newest: 3 };

    /// A stack: how it answers a call of a version, and the versions of the calls that it got.
    struct Stack<F> {
        answers: F,
        calls: Mutex<Vec<u32>>,
    }

    #[async_trait]
    impl<F: Fn(u32) -> Result<AnyReply, CallError> + Send + Sync> CallTransport for Stack<F> {
        async fn send(&self, _: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
            self.calls.lock().unwrap().push(version);
            (self.answers)(version)
        }
    }

    impl<F: Fn(u32) -> Result<AnyReply, CallError> + Send + Sync> Stack<F> {
        fn new(answers: F) -> Self {
            Self { answers, calls: Mutex::default() }
        }

        async fn ask(&self, own: &CallVersion) -> Result<AnyReply, CallError> {
            own.exchange(self, &ForgetCall { job: "j".parse().unwrap() }.into()).await
        }

        fn calls(&self) -> Vec<u32> {
            std::mem::take(&mut *self.calls.lock().unwrap())
        }
    }

    fn forgotten() -> Result<AnyReply, CallError> {
        Ok(AnyReply::Forget(ForgetReply { items: 0, objects: 0, all: true }))
    }

    fn speaking(oldest: u32, newest: u32) -> impl Fn(u32) -> Result<AnyReply, CallError> {
        let spoken = SpokenVersions { oldest, newest };
        move |version| {
            if spoken.includes(version) { forgotten() } else { Err(spoken.refuse(version).into()) }
        }
    }

    #[tokio::test]
    async fn a_caller_speaks_the_newest_version_that_both_speak() {
        let own = CallVersion::new(BOTH);
        let stack = Stack::new(speaking(3, 4));
        stack.ask(&own).await.unwrap();
        assert_eq!((stack.calls(), own.now()), (vec![3], 3));
        let before = Stack::new(speaking(1, 2));
        before.ask(&own).await.unwrap();
        before.ask(&own).await.unwrap();
        assert_eq!((before.calls(), own.now()), (vec![3, 2, 2], 2), "it was rolled back");
        stack.ask(&own).await.unwrap();
        assert_eq!((stack.calls(), own.now()), (vec![2, 3], 3));
    }

    #[tokio::test]
    async fn without_a_common_version_one_line_says_which_to_upgrade() {
        for ((oldest, newest), advice) in
            [((0, 1), "upgrade the stack first"), ((4, 5), "upgrade gristmill where")]
        {
            let (stack, own) = (Stack::new(speaking(oldest, newest)), CallVersion::new(BOTH));
            let error = stack.ask(&own).await.unwrap_err();
            assert!(matches!(error, CallError::Rejected(_)) && !error.is_passing());
            let text = error.to_string();
            assert!(text.contains(advice) && text.contains("2 to 3"), "{text}");
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(stack.calls(), [3]);
        }
    }

    #[tokio::test]
    async fn a_stack_that_is_replaced_meanwhile_is_asked_again() {
        let changing = Stack::new(|version| {
            let spoken = SpokenVersions::only(if version == 3 { 2 } else { 3 });
            Err(CallError::from(spoken.refuse(version)))
        });
        let error = changing.ask(&CallVersion::new(BOTH)).await.unwrap_err();
        assert!(error.is_passing(), "{error}");
        assert_eq!(changing.calls(), [3, 2]);
    }

    fn invalid() -> CallError {
        let message = "words".to_owned();
        CallError::Refused(CallRefusal { kind: RefusalKind::Invalid, message })
    }

    #[tokio::test]
    async fn a_stack_that_cannot_say_its_version_is_found_by_trying() {
        let own = CallVersion::new(BOTH);
        let released =
            Stack::new(|version| if version == 2 { forgotten() } else { Err(invalid()) });
        released.ask(&own).await.unwrap();
        released.ask(&own).await.unwrap();
        assert_eq!((released.calls(), own.now()), (vec![3, 2, 2], 2));
        let own = CallVersion::default();
        let wrong = Stack::new(|_| Err(invalid()));
        assert!(matches!(wrong.ask(&own).await, Err(CallError::Refused(_))));
        assert_eq!(own.now(), VERSION, "a wrong call says nothing about versions");
        let silent = |version| {
            Err(if version == 2 { CallError::Unavailable("lost".into()) } else { invalid() })
        };
        assert!(Stack::new(silent).ask(&own).await.unwrap_err().is_passing());
        assert_eq!(own.now(), VERSION, "it is tried again");
    }

    #[test]
    fn a_worker_speaks_the_version_of_its_event() {
        let own = CallVersion::new(BOTH);
        for (version, spoken) in [(2, 2), (3, 3), (9, 3), (1, 2)] {
            own.speak(version);
            assert_eq!(own.now(), spoken);
        }
    }
}
