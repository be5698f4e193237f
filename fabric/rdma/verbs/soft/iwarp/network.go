package iwarp

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Network is a wire.Network for engines with endpoints that have TCP sockets.
type Network struct {
	wire.Network // for addresses and routes
	lanes        []*lane
}

// NewNetwork makes the network of a device from that of the machine.
func NewNetwork(n wire.Network) *Network { return &Network{Network: n} }

// Open makes a Conn for each of n engines, and one that is not used.
func (w *Network) Open(n int) (conns []wire.Conn, err error) {
	for range n + 1 {
		s, err := wire.NewStreams()
		if err != nil {
			for _, c := range conns {
				err = errors.Join(err, c.Close())
			}
			return nil, err
		}
		conns = append(conns, s)
		w.lanes = append(w.lanes, &lane{Streams: s})
	}
	return conns, nil
}

const (
	// maxVectors is the largest number of memory pieces of one send.
	maxVectors = 512
	// Room for the headers and trailers of one send, and for the bytes of one receive.
	headRoom = 16 << 10
	// receiveRoom also bounds the FPDUs that come before others get their turn: 1,600 empty ones.
	receiveRoom = 32 << 10
	// maxPlan is the largest number of FPDUs of one send.
	maxPlan = 256
)

// A lane is the memory of an engine for one send and one receive of any of its queue pairs. It
// belongs to the holder of the engine.
type lane struct {
	*wire.Streams
	iov   [maxVectors]sys.Iovec
	heads [headRoom]byte
	plan  [maxPlan]fpdu
	bytes [receiveRoom]byte
}
