package tcp

import (
	"bytes"
	"encoding/binary"
	"log/slog"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
)

// set returns b with one byte changed.
func set(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}

// set32 returns b with four bytes changed.
func set32(b []byte, at int, v uint32) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], v)
	return b
}

var (
	sequence = pdu.Fault{FES: pdu.FESSequence}
	limit    = pdu.Fault{FES: pdu.FESLimit, FEI: pdu.OffPLEN}
)

func newRecorder() (*ratelog.Recorder, options) {
	r := ratelog.NewRecorder(slog.DiscardHandler)
	return r, options{cfg: Config{Log: slog.New(r)}}
}
