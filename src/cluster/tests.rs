//! Many nodes in one thread: scenarios, messages of an enemy, and rules that hold with any seed.

use super::action::{Action, Event, LinkId, Outside};
use super::admin::Failover;
use super::config_file;
use super::manual::Part;
use super::node::{Announced, NodeFlags, NodeId};
use super::settings::Settings;
use super::wire::{self, Body, Marks};
use super::{Cluster, MessageCounts};
use crate::collections::hash_slot::{HashSlot, SLOTS, SlotSet};
use world::{HEALING_MS, TIMEOUT_MS, World, ip, name, range, settings};

mod hostile;
mod misfortune;
mod world;

/// Makes a node take slots that their owner has granted to it.
fn take_slots(world: &mut World, index: usize, slots: SlotSet) {
    world.command(index, |cluster, outside, actions| {
        cluster.take_slots_granted(&slots, outside, actions);
    });
}

#[test]
fn nodes_meet_and_agree() {
    let world = World::formed(3, 3, 1);
    for machine in &world.machines {
        assert_eq!(machine.cluster.nodes().count(), 6);
        assert!(
            machine.cluster.nodes().all(|(_, node)| !node.flags.contains(NodeFlags::HANDSHAKE))
        );
        assert_ne!(*machine.cluster.counts(), MessageCounts::default());
    }
}

#[test]
fn a_replica_takes_the_place_of_a_primary_that_is_killed_which_then_follows_it() {
    let mut world = World::formed(3, 3, 2);
    world.kill(0);
    world.run(5 * TIMEOUT_MS);
    world.check_agreement();
    let cluster = &world.machines[1].cluster;
    let owner = cluster.owner(HashSlot::new(0).expect("a slot")).expect("it is served");
    assert_eq!(cluster.node(owner).id, name(3));
    world.restart(0);
    world.run(HEALING_MS);
    world.check_agreement();
    assert!(world.machines[0].cluster.myself().is_replica());
    assert_eq!(world.machines[0].follows, Some(3));
}

#[test]
fn nobody_votes_in_an_epoch_that_a_node_has_won() {
    let mut world = World::formed(3, 3, 14);
    world.kill(0);
    world.run(5 * TIMEOUT_MS);
    let epoch = world.machines[3].cluster.myself().config_epoch;
    assert!(world.machines[3].cluster.myself().is_primary());
    assert!(world.machines[3].cluster.last_vote_epoch < epoch);
    // A replica that has not heard of that election.
    world.command(4, |cluster, outside, actions| {
        cluster.current_epoch = epoch - 1;
        cluster.fail_over(Failover::Forced, false, outside, actions)
    });
    world.run(100);
    let asked = world.machines[3].cluster.last_vote_epoch;
    assert!(asked < epoch, "{asked}");
    world.run(HEALING_MS);
    world.check_agreement();
}

#[test]
fn the_replica_with_more_of_the_stream_takes_the_place() {
    for seed in 0..20 {
        let (mut world, [behind, ahead]) =
            (World::formed(3, 6, seed), if seed % 2 == 0 { [3, 6] } else { [6, 3] });
        for index in 0..9 {
            // Replicas wait for each other by a fraction of the time-out.
            let settings = Settings { node_timeout_ms: 3 * TIMEOUT_MS, ..settings(index) };
            world.command(index, |cluster, _, _| cluster.set_settings(settings));
        }
        world.run(7_000);
        world.unfollowed.insert((behind, 0));
        world.run(1_500);
        let changes = [behind, ahead].map(|index| world.machines[index].history.len());
        assert!(changes[0] < changes[1], "seed {seed}: {changes:?}");
        world.kill(0);
        world.run(5 * 3 * TIMEOUT_MS);
        let slot = HashSlot::new(0).expect("a slot");
        assert!(world.machines[ahead].cluster.owns(slot), "seed {seed}");
    }
}

#[test]
fn a_primary_that_comes_back_with_another_ones_epoch_takes_no_slots_back() {
    // The epoch of another primary, and that of its successor.
    for (seed, other) in (0..20).zip([1, 3].into_iter().cycle()) {
        let mut world = World::formed(3, 3, seed);
        world.kill(0);
        world.run(5 * TIMEOUT_MS);
        world.check_agreement();
        let epoch = world.machines[other].cluster.myself().config_epoch;
        let text = String::from_utf8(world.machines[0].file.clone()).expect("a text");
        let mut conf: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let epoch = epoch.to_string();
        let own = conf.iter_mut().find(|line| line[2].starts_with("myself"));
        own.expect("its own line")[6] = &epoch;
        let lines = conf.iter().map(|line| line.join(" ") + "\n");
        world.machines[0].file = lines.collect::<String>().into_bytes();
        world.restart(0);
        world.run(HEALING_MS);
        world.check_agreement();
        assert_eq!(world.machines[0].follows, Some(3), "seed {seed}");
    }
}

#[test]
fn a_primary_that_comes_back_takes_no_slot_that_has_moved_on() {
    for seed in 0..20 {
        let mut world = World::formed(3, 3, seed);
        let slot = world.machines[1].cluster.myself().slots.iter().next().expect("a slot");
        world.kill(0);
        world.run(5 * TIMEOUT_MS);
        take_slots(&mut world, 2, [slot].into_iter().collect());
        world.run(2_000);
        // It has loaded a key that it had before it gave the slot away.
        world.restart(0);
        let settings = Settings { as_valkey: true, ..settings(0) };
        world.command(0, |cluster, _, _| {
            cluster.set_settings(settings);
            assert!(!cluster.claim_loaded(slot) && cluster.importing_from(slot).is_some());
        });
        world.run(HEALING_MS);
        world.check_agreement();
        assert_eq!(world.machines[0].follows, Some(3), "seed {seed}");
        assert!(world.machines[2].cluster.owns(slot), "seed {seed}");
    }
}

#[test]
fn a_primary_learns_from_a_former_primary_of_its_shard_which_slots_its_successor_has() {
    for seed in 0..20 {
        let mut world = World::formed(3, 6, seed);
        let slot = world.machines[0].cluster.myself().slots.iter().next().expect("a slot");
        world.kill(0);
        let is_primary = |world: &World, index: usize| world.machines[index].follows.is_none();
        let old = loop {
            world.run(10);
            if let Some(elected) = [3, 6].into_iter().find(|index| is_primary(&world, *index)) {
                break elected;
            }
        };
        // It does not learn that the other replica follows it.
        world.kill(old);
        world.run(5 * TIMEOUT_MS);
        let new = 9 - old;
        assert!(world.machines[new].cluster.owns(slot), "seed {seed}");
        world.restart(0);
        world.run(HEALING_MS);
        world.cut_both(old, new);
        world.restart(old);
        world.run(HEALING_MS);
        assert!(!world.machines[old].cluster.owns(slot), "seed {seed}");
    }
}

#[test]
fn nodes_that_come_back_follow_the_present_primary_of_their_shard() {
    for seed in 0..20 {
        // In odd seeds nobody goes to another shard.
        let allows_replica_migration = seed % 2 == 0;
        let mut world = World::formed(3, 6, seed);
        let set = |world: &mut World, index| {
            let settings = Settings { allows_replica_migration, ..settings(index) };
            world.command(index, |cluster, _, _| cluster.set_settings(settings));
        };
        (0..9).for_each(|index| set(&mut world, index));
        world.kill(6);
        world.kill(0);
        world.run(5 * TIMEOUT_MS);
        world.check_agreement();
        assert!(world.machines[3].cluster.myself().is_primary(), "seed {seed}");
        // The successor has a slot that its predecessor had not, and lacks one.
        for (index, slot) in [(3, SLOTS / 2), (1, 0)] {
            take_slots(&mut world, index, range(slot, slot));
        }
        world.run(HEALING_MS);
        world.restart(0);
        set(&mut world, 0);
        world.run(HEALING_MS);
        // It knows only the former primary.
        world.restart(6);
        set(&mut world, 6);
        world.run(HEALING_MS);
        world.check_agreement();
        for index in [0, 6] {
            let primary = world.machines[index].follows.expect("a primary");
            assert!(world.machines[primary].cluster.myself().is_primary(), "seed {seed}");
            assert!(allows_replica_migration || primary == 3, "seed {seed}: {index} {primary}");
        }
    }
}

#[test]
fn a_replica_takes_the_place_of_its_primary_on_demand() {
    for kind in [Failover::Agreed, Failover::Forced, Failover::Takeover] {
        let mut world = World::formed(3, 3, 3);
        world.command(4, |cluster, outside, actions| {
            cluster.fail_over(kind, false, outside, actions)
        });
        world.run(3_000);
        world.check_agreement();
        assert!(world.machines[4].cluster.myself().is_primary(), "{kind:?}");
        assert_eq!(world.machines[1].follows, Some(4), "{kind:?}");
    }
}

#[test]
fn a_primary_hands_over_to_one_replica_at_a_time() {
    let mut world = World::formed(3, 6, 3);
    let ask = |world: &mut World, replica| {
        world.command(replica, |cluster, outside, actions| {
            cluster.fail_over(Failover::Agreed, false, outside, actions)
        });
    };
    let is_primary = |world: &World, index: usize| world.machines[index].follows.is_none();
    // The first replica cannot be elected, but might as long as it tries. The second one waits.
    [0, 2].into_iter().for_each(|voter| world.cut_both(4, voter));
    ask(&mut world, 4);
    world.run(500);
    ask(&mut world, 7);
    world.run(3_000);
    assert!(is_primary(&world, 1) && world.machines[1].cluster.is_handing_over());
    assert!(!is_primary(&world, 4) && !is_primary(&world, 7));
    // The first one gives up after five seconds, and the primary two seconds later.
    world.run(2_500);
    ask(&mut world, 7);
    world.run(500);
    assert!(!is_primary(&world, 7));
    world.run(2_500);
    assert!(is_primary(&world, 7));
    world.cut.clear();
    world.run(3_000);
    world.check_agreement();
    assert!([1, 4].iter().all(|index| world.machines[*index].follows == Some(7)));
}

#[test]
fn a_replica_whose_time_is_over_takes_no_place() {
    for (late_ms, wins) in [(0, true), (6_000, false)] {
        let mut world = World::formed(3, 3, 3);
        let settings = Settings { node_timeout_ms: 15_000, ..settings(4) };
        world.command(4, |cluster, _, _| cluster.set_settings(settings));
        [0, 1, 2].into_iter().for_each(|index| world.cut_both(4, index));
        world.command(4, |cluster, outside, actions| {
            cluster.fail_over(Failover::Agreed, false, outside, actions);
            let Some(manual) = &mut cluster.manual else { panic!("a failover") };
            manual.part = Part::Replica { offset: Some(0), may_start: true };
        });
        // The votes are read after its process was stopped.
        let has_won = world.command(4, |cluster, outside, _| {
            let boot_ms = outside.boot_ms + late_ms;
            cluster.enter(&Outside { boot_ms, ..*outside });
            for voter in [0, 2] {
                let voter = cluster.find(&name(voter)).expect("known");
                cluster.take_vote(voter, cluster.current_epoch);
            }
            cluster.out.clear();
            cluster.myself().is_primary()
        });
        assert_eq!(has_won, wins);
    }
}

#[test]
fn a_replica_that_does_not_know_of_a_slot_yet_takes_the_place_later() {
    let mut world = World::formed(3, 3, 12);
    let slot = HashSlot::new(0).expect("a slot");
    // Two nodes take slots with the same epoch, the second one from the first, and the replica
    // hears of that epoch from the first one.
    (0..6).filter(|index| *index != 1).for_each(|index| world.cut_both(1, index));
    take_slots(&mut world, 0, range(SLOTS - 1, SLOTS - 1));
    world.run(500);
    world.command(0, |cluster, _, _| {
        let target = cluster.find(&name(1)).expect("known");
        cluster.set_granted(vec![(range(0, 0), target)]);
    });
    take_slots(&mut world, 1, range(0, 0));
    world.cut.clear();
    (1..6).filter(|index| *index != 2).for_each(|index| world.cut_both(0, index));
    world.run(500);
    world.command(4, |cluster, outside, actions| {
        cluster.fail_over(Failover::Agreed, false, outside, actions)
    });
    world.run(1_000);
    assert!(world.machines[4].cluster.myself().is_replica());
    world.cut.clear();
    world.run(3_000);
    world.check_agreement();
    assert!(world.machines[4].cluster.owns(slot));
    assert_eq!(world.machines[1].follows, Some(4));
}

#[test]
fn a_primary_with_an_epoch_of_its_own_making_yields_to_the_replica_that_was_elected_in_it() {
    for seed in 0..10 {
        let mut world = World::formed(3, 3, seed);
        // It hears the others, which do not hear it.
        for other in 1..6 {
            world.cut.insert((0, other));
        }
        world.command(0, |cluster, outside, actions| {
            assert!(cluster.bump_epoch(outside, actions));
        });
        world.run(3 * TIMEOUT_MS);
        let epoch = |index: usize| world.machines[index].cluster.myself().config_epoch;
        assert!(world.machines[3].follows.is_none(), "seed {seed}");
        assert_eq!(epoch(0), epoch(3), "seed {seed}");
        world.cut.clear();
        world.run(HEALING_MS);
        world.check_agreement();
        assert_eq!(world.machines[0].follows, Some(3), "seed {seed}");
    }
}

#[test]
fn a_slot_that_its_owner_has_given_up_is_free_after_a_restart_too() {
    let mut world = World::formed(3, 0, 12);
    let slot = HashSlot::new(0).expect("a slot");
    // The third node hears that the first has given the slot up, and has a greater epoch since. It
    // does not hear of the second one.
    world.cut_both(1, 2);
    world.command(0, |cluster, _, _| {
        let target = cluster.find(&name(1)).expect("known");
        cluster.set_granted(vec![(range(0, 0), target)]);
    });
    take_slots(&mut world, 1, range(0, 0));
    world.run(300);
    world.command(0, |cluster, _, _| cluster.set_granted(Vec::new()));
    take_slots(&mut world, 0, range(SLOTS - 1, SLOTS - 1));
    world.run(300);
    assert!(world.machines[2].cluster.unclaimed.contains(slot));
    world.kill(2);
    world.cut.clear();
    world.cut_both(0, 2);
    world.restart(2);
    world.run(1_000);
    assert!(world.machines[1].cluster.owns(slot));
    world.cut.clear();
    world.run(HEALING_MS);
    world.check_agreement();
    assert!(world.machines[1].cluster.owns(slot));
}

#[test]
fn a_slot_that_was_taken_can_be_given_back_at_once() {
    let mut world = World::formed(3, 0, 12);
    let slot = HashSlot::new(0).expect("a slot");
    take_slots(&mut world, 1, range(0, 0));
    // The new owner does not hear that the old one has given the slot up.
    world.cut.insert((0, 1));
    world.run(500);
    let [old, new] = [0, 1].map(|index| move |cluster: &Cluster| cluster.find(&name(index)));
    world.command(0, |cluster, outside, actions| {
        let source = new(cluster).expect("known");
        assert_eq!(cluster.owner(slot), Some(source));
        cluster.set_importing(slot, source, outside, actions);
    });
    world.command(1, |cluster, outside, actions| {
        let target = old(cluster).expect("known");
        cluster.set_migrating(slot, target, outside, actions);
    });
    world.command(0, |cluster, outside, actions| {
        let myself = cluster.my_index();
        cluster.assign_slot(slot, myself, false, outside, actions);
    });
    world.cut.clear();
    world.run(2_000);
    let cluster = &world.machines[1].cluster;
    assert_eq!(cluster.owner(slot), old(cluster));
    world.check_agreement();
}

#[test]
fn a_claim_that_is_overtaken_by_the_grant_takes_nothing_back() {
    let mut world = World::formed(3, 0, 12);
    let slot = HashSlot::new(0).expect("a slot");
    // The new owner does not hear of the greater epoch of the old one before it takes the slot.
    world.cut_both(0, 1);
    let mut headers = Vec::new();
    world.command(0, |cluster, outside, actions| {
        cluster.set_epoch(100, outside, actions);
        headers.push(cluster.header(Marks::default()));
        let target = cluster.find(&name(1)).expect("known");
        cluster.set_granted(vec![(range(0, 0), target)]);
        headers.push(cluster.header(Marks::default()));
    });
    take_slots(&mut world, 1, range(0, 0));
    world.command(1, |cluster, outside, _| {
        cluster.enter(outside);
        let source = cluster.find(&name(0)).expect("known");
        for header in headers.iter().rev() {
            cluster.take_claims(source, header);
            assert!(cluster.owns(slot));
        }
        // A greater epoch than at the grant is no old one.
        headers[0].config_epoch = 101;
        cluster.take_claims(source, &headers[0]);
        assert!(!cluster.owns(slot));
    });
}

#[test]
fn a_change_of_role_is_told_to_all_nodes_at_once() {
    let mut world = World::formed(3, 3, 9);
    for index in 0..6 {
        let settings = Settings { ping_interval_ms: 300_000, ..settings(index) };
        world.command(index, |cluster, _, _| {
            cluster.set_settings(settings);
            cluster.faults().pings_nobody = true;
        });
    }
    world.run(2_000);
    world.command(3, |cluster, outside, actions| {
        cluster.fail_over(Failover::Agreed, false, outside, actions)
    });
    world.run(1_000);
    for machine in &world.machines {
        let cluster = &machine.cluster;
        let [former, successor] =
            [0, 3].map(|index| cluster.node(cluster.find(&name(index)).expect("known")));
        assert!(former.is_replica() && successor.is_primary());
        assert_eq!(former.primary, cluster.find(&name(3)));
    }
}

#[test]
fn slots_go_to_the_successor_when_the_former_owner_tells_of_it() {
    for moves in [false, true] {
        let mut world = World::formed(3, 1, 10);
        let [first, last] = [0, 100].map(|number| HashSlot::new(number).expect("a slot"));
        if moves {
            let settings = Settings { as_valkey: true, ..settings(1) };
            world.command(1, |cluster, outside, actions| {
                cluster.set_settings(settings);
                let source = cluster.find(&name(0)).expect("known");
                cluster.set_importing(first, source, outside, actions);
                cluster.set_migrating(last, source, outside, actions);
            });
        }
        world.cut_both(1, 3);
        world.command(3, |cluster, outside, actions| {
            cluster.fail_over(Failover::Takeover, false, outside, actions)
        });
        world.run(300);
        let cluster = &world.machines[1].cluster;
        let successor = cluster.find(&name(3)).expect("known");
        assert!(cluster.is_ok() && cluster.node(successor).is_primary());
        assert_eq!(cluster.owner(first), Some(successor));
        let epoch = world.machines[3].cluster.myself().config_epoch;
        assert_eq!(cluster.node(successor).config_epoch, epoch);
        let former = cluster.node(cluster.find(&name(0)).expect("known"));
        assert!(former.slots.is_empty() && former.primary == Some(successor));
        assert_eq!(cluster.importing_from(first), moves.then_some(successor));
        assert_eq!(cluster.migrating_to(last), moves.then_some(successor));
    }
}

#[test]
fn a_replica_whose_primary_follows_another_node_follows_that_one() {
    let mut world = World::formed(1, 2, 11);
    world.cut_both(2, 1);
    world.command(1, |cluster, outside, actions| {
        cluster.fail_over(Failover::Takeover, false, outside, actions)
    });
    world.run(300);
    let cluster = &world.machines[2].cluster;
    assert_eq!(cluster.myself().primary, cluster.find(&name(1)));
    assert_eq!(world.machines[2].follows, Some(1));
}

#[test]
fn a_replica_with_the_data_of_another_shard_has_nothing_to_offer() {
    for seed in 50..60 {
        let mut world = World::formed(3, 3, seed);
        world.unfollowed.insert((4, 0));
        world.command(4, |cluster, outside, actions| {
            let primary = cluster.find(&name(0)).expect("known");
            cluster.replicate(primary, outside, actions);
        });
        world.run(2 * TIMEOUT_MS);
        let offset = |world: &World| {
            let cluster = &world.machines[1].cluster;
            cluster.node(cluster.find(&name(4)).expect("known")).repl_offset
        };
        assert_eq!(offset(&world), 0);
        if seed % 2 == 0 {
            // The replica that has the data takes over, however much the other had of its own.
            world.kill(0);
            world.run(5 * TIMEOUT_MS);
            assert!(world.machines[3].cluster.myself().is_primary(), "seed {seed}");
            world.unfollowed.clear();
            world.run(3 * TIMEOUT_MS);
            assert_eq!(world.machines[4].follows, Some(3), "seed {seed}");
        } else {
            world.unfollowed.clear();
            world.run(3 * TIMEOUT_MS);
        }
        assert_ne!(offset(&world), 0, "seed {seed}");
    }
}

#[test]
fn a_minority_serves_nothing() {
    let mut world = World::formed(3, 3, 4);
    for other in [1, 2, 3, 4, 5] {
        world.cut_both(0, other);
    }
    world.run(5 * TIMEOUT_MS);
    assert!(!world.machines[0].cluster.is_ok());
    assert!(world.machines[3].cluster.myself().is_primary());
    world.cut.clear();
    world.run(HEALING_MS);
    world.check_agreement();
    assert!(world.machines[0].cluster.myself().is_replica());
}

/// Three primaries with the default timeout, which have been calm for a while.
fn calm(seed: u64) -> World {
    let mut world = World::formed(3, 0, seed);
    for index in 0..3 {
        let settings = Settings { node_timeout_ms: CALM_TIMEOUT_MS, ..settings(index) };
        world.command(index, |cluster, _, _| cluster.set_settings(settings));
    }
    world.run(2 * CALM_TIMEOUT_MS);
    world
}

const CALM_TIMEOUT_MS: i64 = 15_000;

#[test]
fn a_calm_primary_has_seldom_something_to_do() {
    // Only if the seed is even, ticks without anything to do are left out.
    for seed in 10..20 {
        let mut world = calm(seed);
        let sent = |world: &World| world.machines[0].cluster.counts().sent[0];
        let before = sent(&world);
        let mut ticks = 0;
        for _ in 0..300 {
            ticks += u32::from(world.machines[0].cluster.due_ms() <= world.now + 100);
            world.run(100);
        }
        // One ping a second, and that of another node when it has been silent for too long.
        assert!((29..=40).contains(&ticks), "seed {seed}: {ticks} ticks");
        assert!((29..=40).contains(&(sent(&world) - before)), "seed {seed}");
    }
}

#[test]
fn a_calm_primary_suspects_a_silent_node_in_time() {
    for seed in 20..40 {
        let mut world = calm(seed);
        let silent = world.machines[0].cluster.find(&name(2)).expect("known");
        let last_ms = world.machines[0].cluster.node(silent).pong_received_ms;
        world.cut_both(0, 2);
        world.cut_both(1, 2);
        // The other node may have heard it later.
        let latest_ms = world.now.max(last_ms) + CALM_TIMEOUT_MS / 2 + CALM_TIMEOUT_MS + 300;
        while !world.machines[0].cluster.node(silent).is_failing() {
            assert!(world.now <= latest_ms, "seed {seed}");
            world.run(100);
        }
    }
}

#[test]
fn a_primary_without_replicas_gets_one() {
    let mut world = World::formed(3, 4, 5);
    world.kill(4);
    world.run(HEALING_MS);
    let orphan = world.machines[0].cluster.find(&name(1)).expect("known");
    let cluster = &world.machines[0].cluster;
    assert!(cluster.node(orphan).replicas.len() > 1, "{:?}", cluster.node(orphan).replicas);
}

#[test]
fn a_node_that_has_just_started_takes_nobody_for_failed_alone() {
    let mut world = World::formed(3, 3, 8);
    world.kill(0);
    world.kill(4);
    let text = String::from_utf8(world.machines[0].file.clone()).expect("a text");
    let suspects = |line: &str| match line.starts_with(name(4).as_str()) {
        true => line.replace(" slave ", " slave,fail? ") + "\n",
        false => format!("{line}\n"),
    };
    world.machines[0].file = text.lines().map(suspects).collect::<String>().into_bytes();
    world.restart(0);
    world.run(100);
    let cluster = &world.machines[0].cluster;
    let other = cluster.node(cluster.find(&name(4)).expect("known"));
    assert!(other.flags.contains(NodeFlags::PFAIL) && !other.flags.contains(NodeFlags::FAIL));
}

#[test]
fn a_forgotten_node_does_not_come_back_at_once() {
    let mut world = World::formed(3, 3, 6);
    for index in [0, 1, 2, 3, 5] {
        world.command(index, |cluster, outside, actions| {
            // The first node may already have made the others forget it.
            if let Some(index) = cluster.find(&name(4)) {
                cluster.forget(index, outside, actions);
            }
        });
    }
    // Later it asks to join, as nobody opens a connection to it.
    world.run(900);
    assert!(
        [0, 1, 2, 3, 5].iter().all(|index| world.machines[*index].cluster.find(&name(4)).is_none())
    );
}

#[test]
fn who_learns_of_a_nodes_slots_knows_its_hostname() {
    let mut world = World::formed(3, 1, 7);
    for index in 0..3 {
        let announced = Announced { hostname: format!("host-{index}"), ..Announced::default() };
        world.command(index, |cluster, _, _| {
            cluster.set_settings(Settings { announced, ..settings(index) });
        });
    }
    for index in 0..3 {
        world.command(index, |cluster, outside, actions| {
            let newcomer = cluster.find(&name(3)).expect("known");
            cluster.forget(newcomer, outside, actions);
        });
    }
    world.command(3, |cluster, outside, actions| cluster.reset(Some(name(9)), outside, actions));
    world.command(3, |cluster, outside, actions| {
        cluster.meet(ip(0), 7000, 17000, outside, actions);
    });
    for _ in 0..200 {
        world.run(1);
        let cluster = &world.machines[3].cluster;
        let owners = HashSlot::all().filter_map(|slot| cluster.owner(slot));
        assert!(
            owners.map(|owner| cluster.node(owner)).all(|node| !node.announced.hostname.is_empty())
        );
    }
    assert_eq!(world.machines[3].cluster.size(), 3);
}
