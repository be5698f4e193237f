package wire

import (
	"bytes"
	"testing"
)

// FuzzControl: control messages of any form do not panic, and the ones of putControl are read.
func FuzzControl(f *testing.F) {
	f.Add(make([]byte, 64), uint8(4))
	var c udpConn
	p := &Path{Local: loopA, Remote: loopB}
	c.net = &udp{port: Port}
	if err := c.resolve(p); err != nil {
		f.Fatal(err)
	}
	f.Add(p.route.control[:p.route.controls], uint8(12))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		readMetadata(b)
		buf := make([]byte, 512)
		data, rest := putControl(buf, 7, 9, int(n))
		copy(data, b)
		level, kind, got, tail, ok := controlMessage(buf)
		if !ok || level != 7 || kind != 9 || !bytes.Equal(got, data) || len(tail) != len(rest) {
			t.Errorf("%d bytes: %d %d % x, %v", n, level, kind, got, ok)
		}
	})
}
