//! A gate at which every operation on the stores waits. It determines the order of concurrent
//! operations, and stops them at a crash.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use tokio::sync::oneshot;

/// The gate of one actor. An operation that waits here has not begun.
#[derive(Clone, Debug)]
pub(in crate::service::tests) struct Gate {
    stage: Arc<Stage>,
    actor: usize,
}

/// All gates of a scene.
#[derive(Debug, Default)]
pub(super) struct Stage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<usize, Waiting>,
    /// Actors whose process has died. Their operations never continue.
    dead: Vec<usize>,
    /// Whether the scene is over, and operations are no longer ordered.
    is_over: bool,
    /// Wakes the task that plays the scene.
    director: Option<Waker>,
}

#[derive(Debug)]
struct Waiting {
    operation: &'static str,
    go: oneshot::Sender<()>,
}

impl Gate {
    pub(super) fn new(stage: &Arc<Stage>, actor: usize) -> Self {
        Self { stage: Arc::clone(stage), actor }
    }

    /// Waits until the gate opens; never returns if the process has died.
    pub(in crate::service::tests) async fn pass(&self, operation: &'static str) {
        let (go, waiting) = oneshot::channel();
        {
            let mut state = self.stage.state();
            if state.dead.contains(&self.actor) {
                drop(go);
            } else if state.is_over {
                return;
            } else {
                let before = state.waiting.insert(self.actor, Waiting { operation, go });
                assert!(before.is_none(), "an actor does one thing at a time");
                if let Some(director) = state.director.take() {
                    director.wake();
                }
            }
        }
        if waiting.await.is_err() {
            pending::<()>().await;
        }
    }
}

impl Stage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sets the waker that is woken when an actor reaches a gate.
    pub(super) fn watch(&self, director: &Waker) {
        self.state().director = Some(director.clone());
    }

    /// The operation for which this actor waits.
    pub(super) fn operation(&self, actor: usize) -> Option<&'static str> {
        self.state().waiting.get(&actor).map(|waiting| waiting.operation)
    }

    /// The waiting actors, ascending.
    pub(super) fn actors(&self) -> Vec<usize> {
        self.state().waiting.keys().copied().collect()
    }

    /// Opens the gate for the operation of this actor.
    pub(super) fn let_pass(&self, actor: usize) {
        if let Some(waiting) = self.state().waiting.remove(&actor) {
            waiting.go.send(()).expect("it waits");
        }
    }

    /// Lets no operation of this actor continue, because its process has died.
    pub(super) fn kill(&self, actor: usize) {
        let mut state = self.state();
        state.dead.push(actor);
        state.waiting.remove(&actor);
    }

    /// Ends the scene: operations no longer wait.
    pub(super) fn end(&self) {
        self.state().is_over = true;
    }
}
