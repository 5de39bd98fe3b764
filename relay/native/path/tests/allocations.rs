//! The path of a packet allocates nothing once its buffers and tables have their size.

mod traffic;

const WARM: u32 = 20;
const MORE: u32 = 200;

#[test]
fn no_packet_allocates_after_the_warm_up_whichever_way_it_goes_or_is_dropped() {
    for case in traffic::CASES {
        let allocated = |batches| allocation_counter::measure(|| traffic::run(case, batches)).count_total;
        allocated(1); // what a process needs once
        assert_eq!(allocated(WARM + MORE), allocated(WARM), "{case}");
    }
}
