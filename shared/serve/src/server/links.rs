//! The connections of ranks: a task that reads and one that writes for each, so that no rank waits for another.

use super::{HELLO_TIMEOUT, rank_states::RankLinkId};
use crate::framing::{
    ClientHello, ClientMessage, HEADER_BYTES, SocketFrameKind, header, read_message,
};
use bytes::Bytes;
use gristmill_model::splits::Cursor;
use gristmill_ports::Clock;
use std::{collections::BTreeMap, io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, mpsc},
    task::JoinSet,
};

/// How long a second client of a rank waits for the first to leave: one that reconnects may be faster than the
/// end of its old connection.
const LINK_TIMEOUT: Duration = Duration::from_secs(3);
/// Most messages to one rank that wait to be written: its hello, a step, the end, an error.
const MAX_OUTGOING: usize = 8;

/// Most messages that are kept for a client that waits for its rank.
const MAX_DEFERRED: usize = 16;

/// A connected client, and the permit that it releases when it disconnects.
pub struct ConnectedClient<S> {
    pub stream: S,
    pub rank_index: Option<OwnedSemaphorePermit>,
    /// Whether it says nothing, and is to have all batches.
    pub(super) only_reads: bool,
}

impl<S> ConnectedClient<S> {
    /// A client that holds `permit`.
    pub fn new(stream: S, permit: OwnedSemaphorePermit) -> Self {
        Self { stream, rank_index: Some(permit), only_reads: false }
    }

    pub(super) fn reading_only(stream: S) -> Self {
        Self { only_reads: true, ..stream.into() }
    }
}

impl<S> From<S> for ConnectedClient<S> {
    fn from(stream: S) -> Self {
        Self { stream, rank_index: None, only_reads: false }
    }
}

/// An error as a frame.
pub fn error_frame(why: &str) -> Vec<u8> {
    [&header(SocketFrameKind::Error, Cursor::default(), why.len())[..], why.as_bytes()].concat()
}

/// A frame to write.
pub(super) struct OutgoingFrame {
    header: [u8; HEADER_BYTES],
    payload: Bytes,
}

impl OutgoingFrame {
    /// A frame of `kind` at the batch `at`.
    pub fn new(kind: SocketFrameKind, at: Cursor, payload: impl Into<Bytes>) -> Self {
        let payload = payload.into();
        Self { header: header(kind, at, payload.len()), payload }
    }
}

/// Something that happened to a connection.
pub(super) struct RankLinkEvent {
    pub link: RankLinkId,
    pub what: RankLinkEventKind,
}

pub(super) enum RankLinkEventKind {
    Message(ClientMessage),
    /// All frames of one call of [`RankLinks::send`] are written.
    Written,
    /// Nothing more can be written.
    Unwritable(io::Error),
    /// The client is gone; all its messages came before.
    Gone,
}

/// The role of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RankLinkRole {
    /// It has yet to say hello.
    New,
    /// It said hello as a rank that another client serves.
    Waiting(usize, ClientHello),
    Attached {
        rank_index: usize,
        /// Whether it is a trainer of all batches, which gets no frames of ranks.
        is_plain: bool,
    },
    /// Its last frame says why it was refused, or that all is over.
    Leaving,
}

struct Link {
    outgoing: mpsc::Sender<Vec<OutgoingFrame>>,
    role: RankLinkRole,
    /// When it is given up; a time of the monotonic clock.
    deadline: Option<Duration>,
    deferred: Vec<ClientMessage>,
    only_reads: bool,
    /// Ends its tasks when dropped.
    _tasks: JoinSet<()>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// All connections.
pub(super) struct RankLinks {
    clock: Arc<dyn Clock>,
    links: BTreeMap<RankLinkId, Link>,
    opened: RankLinkId,
}

impl RankLinks {
    /// No connections yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, links: BTreeMap::new(), opened: 0 }
    }

    /// Adds a connection, which must say hello soon.
    pub fn open(
        &mut self,
        visitor: ConnectedClient<impl AsyncRead + AsyncWrite + Send + 'static>,
        events: mpsc::Sender<RankLinkEvent>,
    ) -> RankLinkId {
        let ConnectedClient { stream, rank_index, only_reads } = visitor;
        let link = self.opened;
        self.opened += 1;
        let (reader, writer) = tokio::io::split(stream);
        let (outgoing, frames) = mpsc::channel(MAX_OUTGOING);
        let mut tasks = JoinSet::new();
        if !only_reads {
            tasks.spawn(read(link, reader, events.clone()));
        }
        tasks.spawn(write(link, writer, frames, events));
        let opened = Link {
            outgoing,
            role: RankLinkRole::New,
            deadline: Some(self.clock.monotonic() + HELLO_TIMEOUT),
            deferred: Vec::new(),
            only_reads,
            _tasks: tasks,
            _permit: rank_index,
        };
        self.links.insert(link, opened);
        link
    }

    /// The role of a connection; none if it is gone.
    pub fn role(&self, link: RankLinkId) -> Option<&RankLinkRole> {
        self.links.get(&link).map(|link| &link.role)
    }

    /// The connection said hello as a rank, or, if it `is_plain`, as a trainer of all batches.
    pub fn rank_index(&mut self, link: RankLinkId, rank_index: usize, is_plain: bool) {
        self.set(link, RankLinkRole::Attached { rank_index, is_plain }, None);
    }

    /// Whether the client says nothing, so that only writing to it shows that it is gone.
    pub fn only_reads(&self, link: RankLinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.only_reads)
    }

    /// Whether nobody is connected.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether the connection is that of a trainer of all batches.
    pub fn is_plain(&self, link: RankLinkId) -> bool {
        matches!(self.role(link), Some(RankLinkRole::Attached { is_plain: true, .. }))
    }

    /// The connection waits for another of its rank to end.
    pub fn wait(&mut self, link: RankLinkId, rank_index: usize, hello: ClientHello) {
        self.set(link, RankLinkRole::Waiting(rank_index, hello), Some(LINK_TIMEOUT));
    }

    fn set(&mut self, link: RankLinkId, role: RankLinkRole, patience: Option<Duration>) {
        let now = self.clock.monotonic();
        if let Some(link) = self.links.get_mut(&link) {
            (link.role, link.deadline) = (role, patience.map(|patience| now + patience));
        }
    }

    /// The first connection that waits for the rank.
    pub fn waiting_for(&self, rank_index: usize) -> Option<(RankLinkId, ClientHello)> {
        self.links.iter().find_map(|(link, Link { role, .. })| match role {
            RankLinkRole::Waiting(waiting, hello) if *waiting == rank_index => {
                Some((*link, hello.clone()))
            }
            _ => None,
        })
    }

    /// Writes frames after those that wait.
    pub fn send(&self, link: RankLinkId, frames: Vec<OutgoingFrame>) {
        if let Some(known) = self.links.get(&link) {
            // A writer that has ended could not write: the reader says when the client is gone.
            let _ = known.outgoing.try_send(frames);
        }
    }

    /// Keeps a message of a connection that waits for its rank; whether there was room.
    pub fn defer(&mut self, link: RankLinkId, message: ClientMessage) -> bool {
        let Some(link) = self.links.get_mut(&link) else { return true };
        let has_room = link.deferred.len() < MAX_DEFERRED;
        link.deferred.extend(has_room.then_some(message));
        has_room
    }

    /// The messages that were kept for a connection.
    pub fn take_deferred(&mut self, link: RankLinkId) -> Vec<ClientMessage> {
        let link = self.links.get_mut(&link);
        link.map(|link| std::mem::take(&mut link.deferred)).unwrap_or_default()
    }

    /// Tells a connection why it ends, and ends it.
    pub fn refuse(&mut self, link: RankLinkId, why: &str) {
        tracing::warn!("refused a client: {why}");
        let frame = OutgoingFrame::new(SocketFrameKind::Error, Cursor::default(), why.to_owned());
        self.send(link, vec![frame]);
        self.let_go(link);
    }

    /// Ends a connection once everything is written.
    fn let_go(&mut self, link: RankLinkId) {
        self.set(link, RankLinkRole::Leaving, Some(HELLO_TIMEOUT));
        if let Some(link) = self.links.get_mut(&link) {
            // The writer ends when nobody can send any more.
            link.outgoing = mpsc::channel(1).0;
        }
    }

    /// Ends all connections with a last frame to each that `gets` one.
    pub fn end_all(
        &mut self,
        gets: impl Fn(&Self, RankLinkId) -> bool,
        frame: impl Fn() -> OutgoingFrame,
    ) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            if gets(self, link) {
                self.send(link, vec![frame()]);
            }
            self.let_go(link);
        }
    }

    /// Waits until all connections have ended, or had time to.
    pub async fn drain(&mut self, events: &mut mpsc::Receiver<RankLinkEvent>) {
        while let Some(deadline) = self.deadline() {
            tokio::select! {
                biased;
                event = events.recv() => if let Some(RankLinkEvent { link, what: RankLinkEventKind::Gone }) = event {
                    self.remove(link);
                },
                () = self.clock.sleep(deadline.saturating_sub(self.clock.monotonic())) => {
                    self.overdue().into_iter().for_each(|link| self.remove(link));
                }
            }
        }
    }

    /// Forgets a connection; its tasks end.
    pub fn remove(&mut self, link: RankLinkId) {
        self.links.remove(&link);
    }

    /// The earliest time at which a connection is given up.
    pub fn deadline(&self) -> Option<Duration> {
        self.links.values().filter_map(|link| link.deadline).min()
    }

    /// Connections that are given up now.
    pub fn overdue(&self) -> Vec<RankLinkId> {
        let now = self.clock.monotonic();
        let is_due = |link: &Link| link.deadline.is_some_and(|deadline| deadline <= now);
        self.links.iter().filter(|(_, link)| is_due(link)).map(|(id, _)| *id).collect()
    }
}

async fn read(
    link: RankLinkId,
    mut reader: impl AsyncRead + Unpin,
    events: mpsc::Sender<RankLinkEvent>,
) {
    while let Some(message) = read_message(&mut reader).await {
        let is_last = matches!(message, ClientMessage::Invalid(_));
        let event = RankLinkEvent { link, what: RankLinkEventKind::Message(message) };
        if events.send(event).await.is_err() || is_last {
            return;
        }
    }
    // Nobody listens once serving has ended.
    let _ = events.send(RankLinkEvent { link, what: RankLinkEventKind::Gone }).await;
}

async fn write(
    link: RankLinkId,
    mut writer: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Vec<OutgoingFrame>>,
    events: mpsc::Sender<RankLinkEvent>,
) {
    while let Some(frames) = outgoing.recv().await {
        if let Err(error) = write_frames(&mut writer, frames).await {
            // The reader says when the client is gone, after its last messages.
            let event = RankLinkEvent { link, what: RankLinkEventKind::Unwritable(error) };
            let _ = events.send(event).await;
            return;
        }
        if events.send(RankLinkEvent { link, what: RankLinkEventKind::Written }).await.is_err() {
            break;
        }
    }
    // The client may be gone, and nobody may listen any more.
    let _ = writer.shutdown().await;
    let _ = events.send(RankLinkEvent { link, what: RankLinkEventKind::Gone }).await;
}

async fn write_frames(
    writer: &mut (impl AsyncWrite + Unpin),
    frames: Vec<OutgoingFrame>,
) -> io::Result<()> {
    for OutgoingFrame { header, payload } in frames {
        writer.write_all(&header).await?;
        writer.write_all(&payload).await?;
    }
    writer.flush().await
}
