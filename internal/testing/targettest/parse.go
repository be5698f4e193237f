package targettest

import (
	"encoding/binary"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file parses answers of controllers.

// ParseNamespaceList returns the identifiers of a namespace list up to the first unused entry.
func ParseNamespaceList(b []byte) ([]uint32, error) {
	if len(b) < nvme.IdentifyDataSize {
		return nil, nvme.ErrTruncated
	}
	var ids []uint32
	for ; len(ids) < nvme.NamespacesPerList; b = b[4:] {
		id := binary.LittleEndian.Uint32(b)
		if id == 0 {
			break
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// ParseANALog parses a log. It ignores any bytes after it.
func ParseANALog(b []byte) (*nvme.ANAHeader, []nvme.ANAGroup, error) {
	h, err := nvme.Parse[nvme.ANAHeader](b)
	if err != nil {
		return h, nil, err
	}
	b = b[nvme.ANAHeaderSize:]
	var groups []nvme.ANAGroup
	for range h.NAGD {
		d, err := nvme.Parse[nvme.ANADescriptor](b)
		if err != nil {
			return h, groups, err
		}
		if b = b[nvme.ANADescriptorSize:]; uint64(len(b)) < 4*uint64(d.NNV) {
			return h, groups, nvme.ErrTruncated
		}
		g := nvme.ANAGroup{ANADescriptor: *d}
		for range d.NNV {
			g.NSIDs = append(g.NSIDs, binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
		groups = append(groups, g)
	}
	return h, groups, nil
}

// ParseDiscoveryHeader parses the header from the start of b. At least 18 bytes must be there: a
// host may have asked for the fields only.
func ParseDiscoveryHeader(b []byte) (*nvme.DiscoveryHeader, error) {
	if len(b) < 18 {
		return nil, nvme.ErrTruncated
	}
	var full [nvme.DiscoveryHeaderSize]byte
	copy(full[:], b)
	return nvme.Parse[nvme.DiscoveryHeader](full[:])
}

// TelemetrySize returns the size of a telemetry log in bytes, according to its header.
func TelemetrySize(header []byte) int {
	return (int(binary.LittleEndian.Uint16(header[12:])) + 1) * nvme.TelemetryBlock
}
