package sys

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands and constants of linux/ethtool.h.
const (
	ethtoolGSTRINGS  = 0x1b
	ethtoolGRXFH     = 0x29
	ethtoolGSSETINFO = 0x37
	ethtoolGFEATURES = 0x3a

	ethSSFeatures = 4
	ethGStringLen = 32
	udpV4Flow     = 2
	rxhPorts      = 1<<6 | 1<<7 // RXH_L4_B_0_1 and RXH_L4_B_2_3
	// struct ethtool_get_features_block begins with available, requested and active.
	featureBlock   = 16
	featuresHeader = 8 // of struct ethtool_gfeatures
	stringsHeader  = 12
)

// ethtool calls the driver of a network interface. b begins with the command.
func ethtool(name string, b []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(unsafe.SliceData(b))}
	if copy(req.name[:], name) == len(req.name) {
		return fmt.Errorf("interface %q: %w", name, unix.EINVAL)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req))); e != 0 {
		return fmt.Errorf("interface %q: ethtool command %#x: %w", name,
			binary.NativeEndian.Uint32(b), e)
	}
	return nil
}

// words makes the buffer of a call: the words of list, and room for n bytes.
func words(n int, list ...uint32) []byte {
	var b []byte
	for _, w := range list {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return append(b, make([]byte, n)...)
}

// FeaturesOff returns the features, as ethtool -k names them, that are off and could be on.
func FeaturesOff(name string, features ...string) (off []string, err error) {
	set := words(4, ethtoolGSSETINFO, 0, 1<<ethSSFeatures, 0) // a mask of 64 bits
	if err := ethtool(name, set); err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint32(set[16:]))
	texts := words(n*ethGStringLen, ethtoolGSTRINGS, ethSSFeatures, uint32(n))
	if err := ethtool(name, texts); err != nil {
		return nil, err
	}
	blocks := (n + 31) / 32
	values := words(blocks*featureBlock, ethtoolGFEATURES, uint32(blocks))
	if err := ethtool(name, values); err != nil {
		return nil, err
	}
	for i := range n {
		text := texts[stringsHeader+i*ethGStringLen:][:ethGStringLen]
		feature, _, _ := strings.Cut(string(text), "\x00")
		block := values[featuresHeader+i/32*featureBlock:]
		available := binary.NativeEndian.Uint32(block) >> (i % 32) & 1
		active := binary.NativeEndian.Uint32(block[8:]) >> (i % 32) & 1
		if slices.Contains(features, feature) && available > active {
			off = append(off, feature)
		}
	}
	return off, nil
}

// UDPPortsHashed reports whether a network interface chooses the receive queue of UDP packets over
// IPv4 by their ports, and not only by their addresses.
func UDPPortsHashed(name string) (bool, error) {
	b := words(8, ethtoolGRXFH, udpV4Flow) // the beginning of struct ethtool_rxnfc
	if err := ethtool(name, b); err != nil {
		return false, err
	}
	return binary.NativeEndian.Uint64(b[8:])&rxhPorts == rxhPorts, nil
}
