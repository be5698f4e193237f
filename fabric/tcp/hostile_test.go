package tcp

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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

// TestHostileLog: any number of bad PDUs leaves a few log lines.
func TestHostileLog(t *testing.T) {
	var log testutil.Log
	tg := serve(t, options{cfg: Config{Log: log.Logger()}})
	for range 100 {
		c := tg.dial(t)
		c.send(random(77, 128))
		c.term(pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffType})
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
	n := strings.Count(log.String(), "level=WARN")
	// Ten in as many seconds, each with a count of dropped lines.
	testutil.True(t, n > 0 && n <= 40, "%d lines", n)
}
