//! Exhaustive exploration of the split protocol in small worlds, through the production transitions.
//!
//! Each world bounds how often things go wrong, and all orders are explored: leases stolen at any
//! moment, answers lost and calls sent again, copies of calls that arrive late, two workers under
//! one invocation id, crashes of workers and of the trainer, restores from the latest and from an
//! older checkpoint, reports of death that come late or for the wrong worker, splits that kill
//! their workers, local commits, and collection that decides now and deletes later. Worlds of their
//! own ([`runs`]) have runs of several ranks.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]
#![allow(clippy::collapsible_match, clippy::single_range_in_vec_init, reason = "reads better so")]

mod mutants;
mod run_mutants;
mod runs;
mod step;
mod world;

use gristmill_model::splits::invariants::InvariantViolation;
use mutants::Mutation;
use run_mutants::RunMutation;
use runs::Runs;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::{fmt::Debug, hash::Hash};
use world::{Action, State, World};

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        if let Err(violation) = self.step(&mut next, &action) {
            next.violation = Some(violation);
        }
        // An action without effect leads to no new state.
        (next != *last).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.bundles.iter().flatten().all(|bundle| bundle.attempt <= self.attempts)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![Property::<Self>::always("safe", |_: &World, state: &State| {
            state.violation.is_none()
        })];
        if self.mutation != Mutation::None {
            return properties;
        }
        // A world in which nothing happens is safe too, so the states of interest must be reached.
        properties
            .push(Property::sometimes("done", |world: &World, state: &State| world.is_done(state)));
        if self.poison.is_some() {
            properties.push(Property::sometimes("poisoned", |_: &World, state: &State| {
                state.has_poison()
            }));
        }
        if self.trainer {
            properties
                .push(Property::sometimes("closed", |_: &World, state: &State| state.is_closed()));
            properties
                .push(Property::sometimes("replayed", |_: &World, state: &State| state.replayed));
            properties.push(Property::sometimes("collected", |_: &World, state: &State| {
                state.deleted_passed
            }));
            properties
                .push(Property::sometimes("computed again", |world: &World, state: &State| {
                    world.is_computed_again(state)
                }));
            properties.push(Property::sometimes(
                "closed after going back",
                |_: &World, state: &State| {
                    state.trainer.began_behind.is_some() && state.is_closed()
                },
            ));
        }
        properties
    }
}

/// Explores all of `world`, and requires at least `states` states: a world that shrinks by accident
/// proves less.
fn explore(name: &str, world: World, states: usize) {
    explore_all(name, world, |state| state.violation.clone(), states);
}

fn explore_all<M>(
    name: &str,
    world: M,
    violation: fn(&M::State) -> Option<InvariantViolation>,
    states: usize,
) where
    M: Model<
            State: Clone + Debug + PartialEq + Hash + Send + Sync,
            Action: Clone + Debug + PartialEq,
        > + Send
        + Sync
        + 'static,
{
    let checker = world.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    if let Some(path) = checker.discovery("safe") {
        let violation = violation(path.last_state());
        panic!("{name}: {violation:?} after {:#?}", path.into_actions());
    }
    checker.assert_properties();
    assert!(checker.unique_state_count() >= states, "{name}: too few states");
}

/// Explores `world`, which has the deliberate bug `name`, until invariant `expected` is violated.
fn assert_caught<M>(
    name: &str,
    world: M,
    violation: fn(&M::State) -> Option<InvariantViolation>,
    expected: u8,
) where
    M: Model<
            State: Clone + Debug + PartialEq + Hash + Send + Sync,
            Action: Clone + Debug + PartialEq,
        > + Send
        + Sync
        + 'static,
{
    let checker = world.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checker.discovery("safe").unwrap_or_else(|| panic!("{name} went unnoticed"));
    let violation = violation(path.last_state());
    println!(
        "{name}: {violation:?} after {} steps, {} states",
        path.into_actions().len(),
        checker.unique_state_count()
    );
    assert_eq!(violation.map(|violation| violation.number), Some(expected), "{name}");
}

#[test]
fn leases() {
    explore("leases", World::leases(), 100_000);
}

#[test]
fn one_invocation_delivered_twice() {
    explore("twins", World::twins(), 50_000);
}

#[test]
fn leases_that_are_given_back() {
    explore("returns", World::returns(), 10_000);
}

#[test]
fn poison() {
    explore("poison", World::poison(), 50_000);
}

#[test]
fn poison_and_two_workers() {
    explore("poison and two workers", World::poison_and_two_workers(), 50_000);
}

#[test]
fn trainer_and_collection() {
    explore("trainer", World::trainer(), 100_000);
}

#[test]
fn trainer_in_order() {
    explore("trainer in order", World::trainer_in_order(), 100_000);
}

#[test]
fn trainer_that_crashes_twice() {
    explore("trainer that crashes", World::trainer_that_crashes(), 50_000);
}

#[test]
fn every_mutation_is_caught() {
    for mutation in Mutation::ALL {
        let world = match mutation {
            Mutation::CommitWithoutOwner
            | Mutation::ConditionFailedIsFailure
            | Mutation::ReleaseUnchecked => World::leases(),
            Mutation::PoisonUnisolated
            | Mutation::PoisonWithoutControl
            | Mutation::UnmarkedDeathsForgotten => World::poison(),
            _ => World::trainer(),
        };
        let expected = match mutation {
            Mutation::None => 0,
            Mutation::CommitWithoutOwner => 3,
            Mutation::KeyWithoutAttempt => 5,
            Mutation::CollectByDelivered => 12,
            Mutation::CollectOrphansBeforeDone => 6,
            Mutation::ConditionFailedIsFailure => 13,
            Mutation::UnfencedAck => 11,
            Mutation::ReleaseUnchecked
            | Mutation::PoisonUnisolated
            | Mutation::PoisonWithoutControl
            | Mutation::UnmarkedDeathsForgotten => 14,
        };
        let world = World { mutation, ..world };
        assert_caught(&format!("{mutation:?}"), world, |state| state.violation.clone(), expected);
    }
}

#[test]
fn runs_of_two_ranks_one_and_two() {
    explore_all("runs", Runs::resized(), |state| state.violation.clone(), 200_000);
}

#[test]
fn runs_with_late_calls() {
    let world = Runs::with_late_calls();
    explore_all("late calls", world, |state| state.violation.clone(), 100_000);
}

#[test]
fn a_reader_that_dies() {
    let world = Runs::with_a_reader_that_dies();
    explore_all("a reader that dies", world, |state| state.violation.clone(), 50_000);
}

#[test]
fn runs_whose_ranks_take_the_same_batches() {
    let world = Runs::with_replicas();
    explore_all("replicas", world, |state| state.violation.clone(), 50_000);
    let world = Runs::with_replicas_that_die();
    explore_all("replicas that die", world, |state| state.violation.clone(), 50_000);
}

#[test]
fn a_run_that_goes_back_behind_what_was_collected() {
    explore_all("going back", Runs::rewound(), |state| state.violation.clone(), 50_000);
}

#[test]
fn every_mutation_of_runs_is_caught() {
    for (mutation, expected) in RunMutation::ALL {
        let world = match mutation {
            RunMutation::ReplacedReaderReports => Runs::with_a_reader_that_dies(),
            RunMutation::DurableForOneReplica => Runs::with_replicas(),
            _ => Runs::resized(),
        };
        let world = Runs { mutation, ..world };
        assert_caught(&format!("{mutation:?}"), world, |state| state.violation.clone(), expected);
    }
}
