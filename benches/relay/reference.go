// The Go reference: a relay after the published recipe. SO_REUSEPORT sockets, a goroutine per socket locked to its
// thread, preallocated buffers, a flow map with counters and a time stamp, one datagram per call of package net.
//
// It does what the path of a packet needs (docs/wire.md): first byte, flow look-up by (listener, address, port),
// headers with time and SipHash-2-4, packet info; back: route and source, MAC, time, listener. A flow is made by a
// verified Binding request. It has no limits, no roaming, no split, no IPv6, one listener, and keys that never change.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	outerLength, recordLength, overhead = 26, 25, 51
	covered, macAt                      = 16, 18
	most                                = 2000
	data, toClient, alive               = 1, 0x80, 2
	keyID, listenerID, firstPod         = 1, 1, 17
	ufragLength                         = 23
	soReusePort                         = 15
)

type pathKey [20]byte

type flow struct {
	transceiver    int
	local          [4]byte
	packets, bytes uint64
	seen, alive    time.Time
}

type relay struct {
	listener, upstream *net.UDPConn
	transceivers       []netip.AddrPort
	mutex              sync.Mutex
	flows              map[pathKey]*flow
	ufragKey           cipher.Block
	passwordKey        []byte
	k0, k1             uint64
	up, down           [2]uint64 // received, forwarded
}

func siphash(k0, k1 uint64, in []byte) uint64 {
	a, b, c, d := k0^0x736f6d6570736575, k1^0x646f72616e646f6d, k0^0x6c7967656e657261, k1^0x7465646279746573
	last := uint64(len(in)) << 56
	for ; len(in) >= 8; in = in[8:] {
		word := binary.LittleEndian.Uint64(in)
		d ^= word
		a, b, c, d = sipRound(a, b, c, d)
		a, b, c, d = sipRound(a, b, c, d)
		a ^= word
	}
	for at, value := range in {
		last |= uint64(value) << (8 * at)
	}
	d ^= last
	a, b, c, d = sipRound(a, b, c, d)
	a, b, c, d = sipRound(a, b, c, d)
	a ^= last
	c ^= 0xff
	for range 4 {
		a, b, c, d = sipRound(a, b, c, d)
	}
	return a ^ b ^ c ^ d
}

func sipRound(a, b, c, d uint64) (uint64, uint64, uint64, uint64) {
	a += b
	c += d
	b = bits.RotateLeft64(b, 13) ^ a
	d = bits.RotateLeft64(d, 16) ^ c
	a = bits.RotateLeft64(a, 32)
	a += d
	c += b
	d = bits.RotateLeft64(d, 21) ^ a
	b = bits.RotateLeft64(b, 17) ^ c
	c = bits.RotateLeft64(c, 32)
	return a, b, c, d
}

func (r *relay) mac(datagram []byte, length int) uint64 {
	return siphash(r.k0, r.k1, datagram[:overhead+min(length, covered)])
}

func makeKey(from netip.AddrPort) (key pathKey) {
	binary.BigEndian.PutUint16(key[0:], listenerID)
	binary.BigEndian.PutUint16(key[2:], from.Port())
	address := from.Addr().As16()
	copy(key[4:], address[:])
	return key
}

// openUfrag returns the transceiver that a ufrag names, or -1.
func (r *relay) openUfrag(ufrag []byte) int {
	var block [16]byte
	if n, err := base64.RawStdEncoding.Strict().Decode(block[:], ufrag[1:]); err != nil || n != 16 || ufrag[0] != 'u' {
		return -1
	}
	r.ufragKey.Decrypt(block[:], block[:])
	transceiver := int(binary.BigEndian.Uint32(block[2:])) - firstPod
	if binary.BigEndian.Uint32(block[12:]) != 0 || transceiver < 0 || transceiver >= len(r.transceivers) {
		return -1
	}
	return transceiver
}

// checkRequest returns the transceiver that a Binding request's ufrag names, or -1 where anything is wrong.
func (r *relay) checkRequest(message []byte) int {
	var username []byte
	integrity := 0
	if len(message) < 20 || binary.BigEndian.Uint16(message) != 1 || binary.BigEndian.Uint32(message[4:]) != 0x2112A442 ||
		int(binary.BigEndian.Uint16(message[2:]))+20 != len(message) {
		return -1
	}
	for at := 20; at < len(message); {
		if at+4 > len(message) {
			return -1
		}
		size := int(binary.BigEndian.Uint16(message[at+2:]))
		next := at + 4 + (size+3)&^3
		if next > len(message) {
			return -1
		}
		switch kind := binary.BigEndian.Uint16(message[at:]); {
		case kind == 0x0006 && size > ufragLength:
			username = message[at+4 : at+4+size]
		case kind == 0x0008 && size == 20 && integrity == 0:
			integrity = at
		case kind == 0x8028 && crc32.ChecksumIEEE(message[:at])^0x5354554E != binary.BigEndian.Uint32(message[at+4:]):
			return -1
		}
		at = next
	}
	if username == nil || integrity == 0 || username[ufragLength] != ':' {
		return -1
	}
	transceiver := r.openUfrag(username[:ufragLength])
	if transceiver < 0 {
		return -1
	}
	var password [32]byte
	var head [20]byte
	digest := hmac.New(sha256.New, r.passwordKey)
	digest.Write(username[:ufragLength])
	base64.StdEncoding.Encode(password[:], digest.Sum(nil)[:24])
	copy(head[:], message)
	binary.BigEndian.PutUint16(head[2:], uint16(integrity+4))
	digest = hmac.New(sha1.New, password[:])
	digest.Write(head[:])
	digest.Write(message[20:integrity])
	if !hmac.Equal(digest.Sum(nil), message[integrity+4:integrity+24]) {
		return -1
	}
	return transceiver
}

func (r *relay) fromClients() {
	runtime.LockOSThread()
	buffer, control := make([]byte, overhead+most+1), make([]byte, 64)
	for {
		length, controlLength, _, from, err := r.listener.ReadMsgUDPAddrPort(buffer[overhead:], control)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		r.up[0]++
		if length == 0 || length > most {
			continue
		}
		now, payload, key := time.Now(), buffer[overhead:overhead+length], makeKey(from)
		transceiver := -1
		switch first := payload[0]; {
		case first <= 3:
			if transceiver = r.checkRequest(payload); transceiver < 0 {
				continue
			}
		case first < 20 || first > 191 || (first > 63 && first < 128):
			continue
		}
		r.mutex.Lock()
		found := r.flows[key]
		if transceiver >= 0 {
			if found == nil {
				found = &flow{}
				r.flows[key] = found
			}
			found.transceiver = transceiver
			found.local = localAddress(control[:controlLength])
		}
		if found == nil {
			r.mutex.Unlock()
			continue
		}
		found.packets++
		found.bytes += uint64(length)
		found.seen = now
		transceiver = found.transceiver
		r.mutex.Unlock()
		r.writeHeaders(buffer, length, transceiver, &key, now)
		if _, err := r.upstream.WriteToUDPAddrPort(buffer[:overhead+length], r.transceivers[transceiver]); err == nil {
			r.up[1]++
		}
	}
}

func (r *relay) writeHeaders(out []byte, length, transceiver int, key *pathKey, now time.Time) {
	out[0], out[1], out[2], out[3] = 1, data, 0, 1
	binary.BigEndian.PutUint16(out[4:], 1)
	binary.BigEndian.PutUint32(out[6:], uint32(firstPod+transceiver))
	out[10], out[11] = 0, keyID
	binary.BigEndian.PutUint32(out[12:], uint32(now.UnixMilli()))
	binary.BigEndian.PutUint16(out[16:], 0)
	clear(out[macAt:outerLength])
	record := out[outerLength:overhead]
	binary.BigEndian.PutUint16(record, uint16(length))
	record[2] = 0
	copy(record[3:], key[:])
	binary.BigEndian.PutUint16(record[23:], 0)
	binary.BigEndian.PutUint64(out[macAt:], r.mac(out, length))
}

// accepted returns the length of the payload of a hop datagram from a transceiver, or -1 where anything is wrong.
func (r *relay) accepted(in []byte, from netip.AddrPort, now time.Time) int {
	if len(in) < overhead || in[0] != 1 || in[1] != data|toClient || in[3] == 0 || in[11] != keyID {
		return -1
	}
	transceiver := int(binary.BigEndian.Uint32(in[6:])) - firstPod
	if transceiver < 0 || transceiver >= len(r.transceivers) || r.transceivers[transceiver] != from {
		return -1
	}
	length := int(binary.BigEndian.Uint16(in[outerLength:]))
	if length != len(in)-overhead {
		return -1
	}
	mac := binary.BigEndian.Uint64(in[macAt:])
	clear(in[macAt:outerLength])
	offset := int32(uint32(now.UnixMilli()) - binary.BigEndian.Uint32(in[12:]))
	if r.mac(in, length) != mac || offset < -60000 || offset > 60000 {
		return -1
	}
	return length
}

func (r *relay) fromTransceivers() {
	runtime.LockOSThread()
	buffer := make([]byte, overhead+most)
	control := make([]byte, syscall.CmsgSpace(syscall.SizeofInet4Pktinfo))
	header := (*syscall.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = syscall.IPPROTO_IP, syscall.IP_PKTINFO
	header.SetLen(syscall.CmsgLen(syscall.SizeofInet4Pktinfo))
	info := (*syscall.Inet4Pktinfo)(unsafe.Pointer(&control[syscall.CmsgLen(0)]))
	for {
		read, _, _, from, err := r.upstream.ReadMsgUDPAddrPort(buffer, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		r.down[0]++
		now := time.Now()
		length := r.accepted(buffer[:read], netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), now)
		if length < 0 {
			continue
		}
		key := pathKey(buffer[outerLength+3 : outerLength+23])
		if binary.BigEndian.Uint16(key[:]) != listenerID {
			continue
		}
		r.mutex.Lock()
		found := r.flows[key]
		if found != nil {
			info.Spec_dst = found.local
			if buffer[outerLength+2]&alive != 0 {
				found.alive = now
			}
		}
		r.mutex.Unlock()
		out := control
		if found == nil {
			out = nil
		}
		address := netip.AddrFrom4([4]byte(key[16:]))
		to := netip.AddrPortFrom(address, binary.BigEndian.Uint16(key[2:]))
		if _, _, err := r.listener.WriteMsgUDPAddrPort(buffer[overhead:overhead+length], out, to); err == nil {
			r.down[1]++
		}
	}
}

func localAddress(control []byte) [4]byte {
	if len(control) < syscall.CmsgLen(syscall.SizeofInet4Pktinfo) {
		return [4]byte{}
	}
	return (*syscall.Inet4Pktinfo)(unsafe.Pointer(&control[syscall.CmsgLen(0)])).Spec_dst
}

func openSocket(packetInfo bool) *net.UDPConn {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1)
			if packetInfo {
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_PKTINFO, 1)
			} else {
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
			}
		})
	}}
	conn, err := config.ListenPacket(context.Background(), "udp4", "0.0.0.0:0")
	if err != nil {
		panic(err)
	}
	udp := conn.(*net.UDPConn)
	udp.SetReadBuffer(4 << 20)
	udp.SetWriteBuffer(4 << 20)
	return udp
}

func keyFrom(first byte, length int) []byte {
	key := bytes.Repeat([]byte{first}, length)
	for at := range key {
		key[at] += byte(at)
	}
	return key
}

// reference TRANSCEIVER-IP PORT... : says its port, then its counts for each line of stdin, and ends with it.
func main() {
	hopKey := keyFrom(0, 16)
	block, _ := aes.NewCipher(keyFrom(1, 16))
	r := &relay{
		listener: openSocket(true), upstream: openSocket(false),
		flows: map[pathKey]*flow{}, ufragKey: block, passwordKey: keyFrom(2, 32),
		k0: binary.LittleEndian.Uint64(hopKey), k1: binary.LittleEndian.Uint64(hopKey[8:]),
	}
	for _, text := range os.Args[2:] {
		port, _ := strconv.Atoi(text)
		r.transceivers = append(r.transceivers, netip.AddrPortFrom(netip.MustParseAddr(os.Args[1]), uint16(port)))
	}
	go r.fromClients()
	go r.fromTransceivers()
	fmt.Printf("{\"port\": %d}\n", r.listener.LocalAddr().(*net.UDPAddr).Port)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		up, down := r.up, r.down
		fmt.Printf("{\"up\": [%d, %d, %d], \"down\": [%d, %d, %d]}\n", up[0], up[0], up[1], down[0], down[0], down[1])
	}
}
