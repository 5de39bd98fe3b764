//! The system calls of the data path, and the only unsafe code.
//!
//! Every pointer that the kernel gets points into memory that this module owns or that the caller lends for the length
//! of the call. Arrays are made once; a call fills in as many entries as it uses.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::RawFd;
use std::ptr;

use usher_relay_path::endpoint::{Endpoint, mapped};

/// Bytes of control messages per datagram: one `IP_PKTINFO` or `IPV6_PKTINFO` with its header, aligned.
const CONTROL: usize = 64;

/// A local address that a datagram came to, or leaves from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Local {
    /// v4-mapped.
    pub address: [u8; 16],
    /// Interface number, for link-local addresses only: such an address is nothing without it.
    pub interface: u32,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// Receives batches of datagrams.
pub struct Receiver {
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
}

impl Receiver {
    /// Makes one for at most `batch` datagrams a call.
    pub fn new(batch: usize) -> Self {
        // SAFETY: all-zero bytes are valid values of these C structures.
        let (header, piece, name) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self {
            headers: vec![header; batch].into(),
            pieces: vec![piece; batch].into(),
            names: vec![name; batch].into(),
            controls: vec![Control([0; CONTROL]); batch].into(),
        }
    }

    /// Receives what waits, each datagram into the next of `areas`, and returns how many there were.
    ///
    /// With `rush` also what comes meanwhile: as long as a call brings that many and there are areas left.
    pub fn receive<'a>(
        &mut self,
        fd: RawFd,
        areas: impl Iterator<Item = &'a mut [u8]>,
        rush: Option<usize>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for area in areas.take(self.headers.len()) {
            self.pieces[count] = libc::iovec { iov_base: area.as_mut_ptr().cast(), iov_len: area.len() };
            let header = &mut self.headers[count].msg_hdr;
            header.msg_name = ptr::from_mut(&mut self.names[count]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
            header.msg_iov = ptr::from_mut(&mut self.pieces[count]);
            header.msg_iovlen = 1;
            header.msg_control = self.controls[count].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL;
            header.msg_flags = 0;
            count += 1;
        }
        let mut received = self.receive_from(fd, 0, count)?;
        let mut last = received;
        while received < count && rush.is_some_and(|rush| last >= rush) {
            // What came is to be worked on; an error of the socket will be there again.
            last = self.receive_from(fd, received, count).unwrap_or(0);
            received += last;
        }
        Ok(received)
    }

    /// Receives into the headers from `first` to `end`, and returns how many datagrams there were.
    fn receive_from(&mut self, fd: RawFd, first: usize, end: usize) -> io::Result<usize> {
        loop {
            let headers = &mut self.headers[first..end];
            // SAFETY: `receive` filled the headers in; names, pieces and controls are ours, and the areas are lent to us
            // exclusively until it returns.
            let received = unsafe {
                libc::recvmmsg(fd, headers.as_mut_ptr(), headers.len() as u32, libc::MSG_DONTWAIT, ptr::null_mut())
            };
            if received >= 0 {
                return Ok(received as usize);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(0),
                _ => return Err(error),
            }
        }
    }

    /// How many bytes of datagram `number` of the last call were received.
    pub fn length(&self, number: usize) -> usize {
        self.headers[number].msg_len as usize
    }

    /// Whether datagram `number` was longer than its area.
    pub fn is_cut(&self, number: usize) -> bool {
        self.headers[number].msg_hdr.msg_flags & libc::MSG_TRUNC != 0
    }

    /// Where datagram `number` came from.
    pub fn source(&self, number: usize) -> Endpoint {
        let name = &self.names[number];
        if i32::from(name.sin6_family) == libc::AF_INET6 {
            return Endpoint { address: name.sin6_addr.s6_addr, port: u16::from_be(name.sin6_port) };
        }
        // SAFETY: sockaddr_in is shorter than sockaddr_in6 and not more aligned; the kernel wrote one here.
        let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
        Endpoint { address: mapped(name.sin_addr.s_addr.to_ne_bytes()), port: u16::from_be(name.sin_port) }
    }

    /// The local address that datagram `number` came to, where the socket was asked to tell.
    pub fn local(&self, number: usize) -> Option<Local> {
        let header = &self.headers[number].msg_hdr;
        // SAFETY: the kernel wrote `msg_controllen` bytes of control messages into memory of ours that lives as long as
        // `self`; the macros stay inside it, and what is read is what its level and type say.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while !message.is_null() {
                match ((*message).cmsg_level, (*message).cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        let info: libc::in_pktinfo = ptr::read_unaligned(libc::CMSG_DATA(message).cast());
                        return Some(Local { address: mapped(info.ipi_spec_dst.s_addr.to_ne_bytes()), interface: 0 });
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let info: libc::in6_pktinfo = ptr::read_unaligned(libc::CMSG_DATA(message).cast());
                        let address = info.ipi6_addr.s6_addr;
                        let link_local = address[0] == 0xFE && address[1] & 0xC0 == 0x80;
                        return Some(Local { address, interface: if link_local { info.ipi6_ifindex } else { 0 } });
                    }
                    _ => message = libc::CMSG_NXTHDR(header, message),
                }
            }
        }
        None
    }
}

/// Sends batches of datagrams.
pub struct Sender {
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
    /// Of an `AF_INET6` socket: IPv4 addresses are written v4-mapped.
    is_ipv6: bool,
}

impl Sender {
    /// Makes one for at most `batch` datagrams of together at most `pieces` pieces a call.
    pub fn new(batch: usize, pieces: usize, is_ipv6: bool) -> Self {
        // SAFETY: all-zero bytes are valid values of these C structures.
        let (header, piece, name) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self {
            headers: vec![header; batch].into(),
            pieces: vec![piece; pieces].into(),
            names: vec![name; batch].into(),
            controls: vec![Control([0; CONTROL]); batch].into(),
            is_ipv6,
        }
    }

    /// Sends datagrams: destination, local address, pieces. Calls `failed` with the number of each that the kernel did
    /// not take, and the error.
    pub fn send<'a, P: Iterator<Item = &'a [u8]>>(
        &mut self,
        fd: RawFd,
        datagrams: impl Iterator<Item = (Endpoint, Option<Local>, P)>,
        mut failed: impl FnMut(usize, &io::Error),
    ) {
        let (mut count, mut used, mut done) = (0, 0, 0);
        for (to, local, pieces) in datagrams {
            if count == self.headers.len() {
                self.flush(fd, count, done, &mut failed);
                done += count;
                (count, used) = (0, 0);
            }
            let first = used;
            for piece in pieces {
                // The kernel only reads through it.
                self.pieces[used] = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
                used += 1;
            }
            let name_length = self.write_name(count, to);
            let control_length = local.map_or(0, |local| self.write_control(count, local));
            let header = &mut self.headers[count].msg_hdr;
            header.msg_name = ptr::from_mut(&mut self.names[count]).cast();
            header.msg_namelen = name_length;
            header.msg_iov = ptr::from_mut(&mut self.pieces[first]);
            header.msg_iovlen = used - first;
            header.msg_control =
                if control_length == 0 { ptr::null_mut() } else { self.controls[count].0.as_mut_ptr().cast() };
            header.msg_controllen = control_length;
            count += 1;
        }
        self.flush(fd, count, done, &mut failed);
    }

    fn flush(&mut self, fd: RawFd, count: usize, done: usize, failed: &mut impl FnMut(usize, &io::Error)) {
        let mut sent = 0;
        while sent < count {
            // SAFETY: headers sent..count were filled in by `send`; names, pieces and controls are ours, and what the
            // pieces point to is borrowed until `send` returns.
            let result = unsafe {
                libc::sendmmsg(fd, self.headers[sent..].as_mut_ptr(), (count - sent) as u32, libc::MSG_DONTWAIT)
            };
            if result > 0 {
                sent += result as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                failed(done + sent, &error);
                sent += 1;
            }
        }
    }

    fn write_name(&mut self, number: usize, to: Endpoint) -> u32 {
        let name = &mut self.names[number];
        if self.is_ipv6 {
            name.sin6_family = libc::AF_INET6 as u16;
            name.sin6_port = to.port.to_be();
            name.sin6_addr.s6_addr = to.address;
            return size_of::<libc::sockaddr_in6>() as u32;
        }
        let [.., a, b, c, d] = to.address;
        // SAFETY: sockaddr_in is shorter than sockaddr_in6 and not more aligned.
        let name = unsafe { &mut *ptr::from_mut(name).cast::<libc::sockaddr_in>() };
        name.sin_family = libc::AF_INET as u16;
        name.sin_port = to.port.to_be();
        name.sin_addr.s_addr = u32::from_ne_bytes([a, b, c, d]);
        size_of::<libc::sockaddr_in>() as u32
    }

    fn write_control(&mut self, number: usize, local: Local) -> usize {
        // SAFETY: the buffer is aligned as a cmsghdr and larger than either message with its header.
        unsafe {
            let message = ptr::from_mut(&mut self.controls[number]).cast::<libc::cmsghdr>();
            if self.is_ipv6 {
                let mut info: libc::in6_pktinfo = zeroed();
                info.ipi6_addr.s6_addr = local.address;
                info.ipi6_ifindex = local.interface;
                write_message(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            } else {
                let [.., a, b, c, d] = local.address;
                let mut info: libc::in_pktinfo = zeroed();
                info.ipi_spec_dst.s_addr = u32::from_ne_bytes([a, b, c, d]);
                write_message(message, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
        }
    }
}

/// Writes one control message and returns the bytes that it takes.
///
/// # Safety
/// `message` is aligned and has room for the header and a `T`.
unsafe fn write_message<T>(message: *mut libc::cmsghdr, level: i32, kind: i32, value: T) -> usize {
    let size = size_of::<T>() as u32;
    // SAFETY: as the caller promises.
    unsafe {
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(size) as usize;
        ptr::write_unaligned(libc::CMSG_DATA(message).cast(), value);
        libc::CMSG_SPACE(size) as usize
    }
}

/// Reads away what waits in a stream that does not block: only that there was something counts.
pub fn drain(fd: RawFd) {
    let mut bytes = [0_u8; 4_096];
    // SAFETY: the buffer is ours for the length of the call.
    while unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
}

/// Waits until one of `fds` can be read, at most `milliseconds`; sets for each whether it can.
pub fn wait_readable(fds: &mut [libc::pollfd], milliseconds: i32) -> io::Result<()> {
    // SAFETY: the slice is ours for the length of the call.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
    if result < 0 {
        let error = io::Error::last_os_error();
        for fd in &mut *fds {
            fd.revents = 0;
        }
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// The largest packet that the kernel knows the way to `host` to carry, in bytes with IP header; None when it can't tell.
pub fn path_mtu(to: Endpoint) -> Option<usize> {
    use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::os::fd::AsRawFd;

    let address = Ipv6Addr::from(to.address).to_canonical();
    let (any, level, option): (SocketAddr, _, _) = match address {
        IpAddr::V4(_) => ("0.0.0.0:0".parse().ok()?, libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => ("[::]:0".parse().ok()?, libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let probe = UdpSocket::bind(any).ok()?;
    probe.connect((address, 9)).ok()?; // sends nothing: it makes the kernel look for a route
    let mut mtu: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and size are ours, and the option is an int.
    let result = unsafe {
        libc::getsockopt(probe.as_raw_fd(), level, option, ptr::from_mut(&mut mtu).cast(), ptr::from_mut(&mut size))
    };
    (result == 0).then_some(mtu as usize)
}

/// Lets the calling thread run on CPU `cpu` only.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero bytes are an empty set; CPU_SET checks its bounds by panicking on an index outside of the set.
    let result = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs that this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the set is ours and as large as said; CPU_ISSET is asked for indices inside of it only.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return vec![];
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// How many CPUs the machine has running.
pub fn online_cpus() -> usize {
    // SAFETY: it takes a number and returns one.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    fn endpoint(socket: &UdpSocket) -> Endpoint {
        let address = socket.local_addr().unwrap();
        let std::net::IpAddr::V4(ip) = address.ip() else { panic!("IPv4") };
        Endpoint { address: mapped(ip.octets()), port: address.port() }
    }

    #[test]
    fn pieces_arrive_as_one_datagram_with_their_source() {
        let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut sender = Sender::new(2, 8, false);
        let parts: [&[&[u8]]; 3] = [&[b"one"], &[b"two", b"-", b"parts"], &[b"three"]];
        let items = parts.iter().map(|pieces| (endpoint(&b), None, pieces.iter().copied()));
        sender.send(a.as_raw_fd(), items, |number, error| panic!("{number}: {error}"));
        let mut receiver = Receiver::new(4);
        let mut areas = [[0_u8; 8]; 4];
        let count = receiver.receive(b.as_raw_fd(), areas.iter_mut().map(|area| &mut area[..]), None).unwrap();
        assert_eq!(count, 3);
        assert_eq!((&areas[0][..3], receiver.length(0), receiver.is_cut(0)), (&b"one"[..], 3, false));
        assert_eq!((&areas[1], receiver.length(1), receiver.is_cut(1)), (b"two-part", 8, true));
        assert_eq!((&areas[2][..5], receiver.source(2)), (&b"three"[..], endpoint(&a)));
        assert_eq!(receiver.receive(b.as_raw_fd(), areas.iter_mut().map(|area| &mut area[..]), None).unwrap(), 0);
    }

    #[test]
    fn what_the_kernel_refuses_is_named_and_the_rest_is_sent() {
        let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let nowhere = Endpoint { address: mapped([127, 0, 0, 1]), port: 0 };
        let (payload, mut failed) = (&b"x"[..], Vec::new());
        let items = [endpoint(&b), nowhere, endpoint(&b)].into_iter().map(|to| (to, None, std::iter::once(payload)));
        Sender::new(8, 8, false)
            .send(a.as_raw_fd(), items, |number, error| failed.push((number, error.raw_os_error())));
        assert_eq!(failed, [(1, Some(libc::EINVAL))]);
        let mut areas = [[0_u8; 8]; 4];
        let count = Receiver::new(4).receive(b.as_raw_fd(), areas.iter_mut().map(|area| &mut area[..]), None).unwrap();
        assert_eq!(count, 2);
    }

    #[test]
    fn loopback_has_a_path_mtu() {
        assert!(path_mtu(Endpoint { address: mapped([127, 0, 0, 1]), port: 9 }).unwrap() >= 1_280);
    }
}
