//! What holds of the flow map after each call, whatever was called.

use std::collections::HashSet;

use super::*;

/// Walks all of the map. Panics where its parts contradict each other.
pub(super) fn check(flows: &FlowMap) {
    let slots = &flows.slots;
    let all: Vec<FlowId> = flows.all.iter(slots).collect();
    let ids: HashSet<FlowId> = all.iter().copied().collect();
    assert_eq!((ids.len(), flows.len()), (all.len(), all.len()));
    assert!(all.len() <= flows.capacity);
    assert!(!ids.contains(&0));

    let keys: HashSet<PathKey> = all.iter().map(|&id| slots[id].key).collect();
    assert_eq!(keys.len(), all.len());
    assert!(all.iter().all(|&id| flows.find(&slots[id].key) == Some(id)));

    for state in [State::Probation, State::Confirmed, State::Ended] {
        let line = flows.line(state);
        let members: Vec<FlowId> = line.iter(slots).collect();
        let expected: HashSet<FlowId> = ids.iter().copied().filter(|&id| slots[id].state == state).collect();
        assert_eq!((members.len(), line.len()), (expected.len(), expected.len()));
        assert_eq!(members.iter().copied().collect::<HashSet<_>>(), expected);
        assert!(members.is_sorted_by_key(|&id| slots[id].ordered_at));
        if state == State::Confirmed {
            assert!(members.iter().all(|&id| slots[id].heard_at() - slots[id].ordered_at < ORDER_EVERY));
        }
    }

    let with_ufrag: HashSet<FlowId> = ids.iter().copied().filter(|&id| slots[id].has_ufrag()).collect();
    let groups = check_groups(slots, &flows.by_ufrag, &with_ufrag);
    for (first, len) in groups {
        let most = match slots[first].state {
            State::Probation => flows.probation_per_ufrag,
            State::Confirmed => CONFIRMED_PER_UFRAG,
            State::Ended => flows.capacity,
        };
        assert!(len <= most);
    }
    let with_ssrc: HashSet<FlowId> = ids.iter().copied().filter(|&id| slots[id].ssrc.is_some()).collect();
    check_groups(slots, &flows.ssrcs.by_ssrc, &with_ssrc);
    check_groups(slots, &flows.ssrcs.by_client, &with_ssrc);
}

/// Each flow of `members` stands in the group of its key, once, and no other does. Returns a flow and the length of each.
fn check_groups<G: Grouped>(slots: &Slots, groups: &Groups<G>, members: &HashSet<FlowId>) -> Vec<(FlowId, usize)> {
    let (mut seen, mut lengths) = (HashSet::new(), Vec::new());
    for &id in members {
        if seen.contains(&id) {
            continue;
        }
        let key = G::key(&slots[id]);
        let group: Vec<FlowId> = groups.iter(slots, &key).collect();
        assert!(group.contains(&id));
        assert!(group.iter().all(|&other| G::key(&slots[other]) == key && seen.insert(other)));
        lengths.push((id, group.len()));
    }
    assert_eq!(&seen, members);
    assert_eq!(groups.len(slots), lengths.len());
    lengths
}
