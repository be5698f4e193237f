package tcp

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// askForWrites sends one command for each of writes, and fills writes in. It returns the number of
// bytes of the later responses, including the responses to the flushes in answers.
func (h *manual) askForWrites(c *client, writes [][]byte, rng *rand.Rand) int {
	var all []byte
	for i := range writes {
		writes[i] = random(i+1, (1+rng.IntN(200))*blockSize)
		all = append(all, c.request(nvme.NVMWrite, uint16(i), i<<18, len(writes[i]))...)
	}
	h.send(all)
	return 2 * len(writes) * (pdu.CapsuleRespSize + c.P.HeaderDigestSize())
}

// answers takes the R2Ts and returns the data for them, shuffled, with a flush for each.
func (h *manual) answers(c *client, writes [][]byte, rng *rand.Rand) (stream []byte) {
	size := pdu.DataSize + c.P.HeaderDigestSize()
	r2ts := bytes.Clone(h.recv())
	testutil.MustTrue(h.tb, len(r2ts) == size*len(writes), "%d bytes of R2Ts, want %d of %d",
		len(r2ts), len(writes), size)
	sent := make([]int, len(writes))
	for left := rng.Perm(len(writes)); len(left) > 0; {
		k := rng.IntN(min(len(left), 1+rng.IntN(2)))
		i := left[k]
		r := (*pdu.Data)(r2ts[i*size:])
		n, flags := len(writes[i])-sent[i], pdu.LastPDU
		if rng.IntN(2) == 0 && n > blockSize {
			n, flags = (1+rng.IntN(n/4-1))*4, 0
		} else {
			left = append(left[:k], left[k+1:]...)
			stream = append(stream, c.request(nvme.NVMFlush, uint16(100+i), 0, 0)...)
		}
		stream = append(stream,
			c.H2CData(flags, r.CCCID(), r.TTAG(), sent[i], writes[i][sent[i]:sent[i]+n])...)
		sent[i] += n
	}
	return stream
}

func (h *manual) cutUp(b []byte, rng *rand.Rand) {
	for len(b) > 0 {
		n := min(len(b), 1+rng.IntN(1<<rng.IntN(19)))
		h.send(b[:n])
		b = b[n:]
	}
}

// A queue receives only its share of a large transfer in a poll, also if it is alone: others may
// have input meanwhile.
func TestTurnOfInput(t *testing.T) {
	const n = 1 << 20
	h, c := joined(t, options{}, pdu.Params{}, 4)
	busy := h.peer
	h.send(c.request(nvme.NVMWrite, 1, 0, n))
	r2t := h.recv()
	testutil.MustTrue(t, len(r2t) == pdu.DataSize, "got %x, want an R2T", r2t)
	tag := (*pdu.Data)(r2t).TTAG()
	h.connect(pdu.Params{}, 4)
	q := h.g.queues.At(0)
	r := q.grants.First()
	h.g.turnsUntil = h.loop.now + recent
	h.g.activate(q)
	all := c.H2CData(pdu.LastPDU, 1, tag, 0, random(1, n))
	sent, _ := sys.Send(busy, all, 0)
	if sent < turnInput+2*partialSize {
		t.Skipf("the socket takes no more than %d bytes", sent)
	}
	h.g.Poll(64)
	inTurns := int(r.placed)
	testutil.True(t, inTurns >= turnInput-2*pdu.DataSize && inTurns <= turnInput,
		"%d bytes in a turn beside another queue, want about %d", inTurns, turnInput)
	more, _ := sys.Send(busy, all[sent:], 0)
	h.loop.now += 2 * recent
	h.g.Poll(64)
	if alone, there := int(r.placed)-inTurns, sent+more-pdu.DataSize-
		inTurns; alone != min(max(there, 0), turnInput) {
		t.Errorf("%d bytes in a turn alone, %d were there", alone, there)
	}
	h.close(h.peer, busy)
}

// A host with a socket buffer smaller than its capsule sends the rest when the beginning is
// acknowledged. After a response the kernel delays acknowledgements unless it is told not to.
func TestUnfinishedCapsule(t *testing.T) {
	tg, c := served(t, options{}, pdu.Params{}, 4, nvme.CATTRNoFlowControl)
	quick := func() (v int, unfinished bool) {
		tg.do(func() {
			q := tg.g.queues.At(0)
			unfinished = q.unfinished()
			v, _ = unix.GetsockoptInt(q.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK)
		})
		return v, unfinished
	}
	b := c.inCapsule(1, 0, 8192, 1)
	for _, cut := range []int{1, pdu.CapsuleCmdSize - 1, pdu.CapsuleCmdSize + 1, len(b) - 1} {
		c.send(b)
		c.status(1, nvme.Success)
		c.send(b[:cut])
		testutil.Until(t, "the beginning of a capsule", func() bool {
			_, unfinished := quick()
			return unfinished
		})
		if v, _ := quick(); v != 1 {
			t.Errorf("acknowledgements are held back when %d bytes of %d have arrived", cut, len(b))
		}
		c.send(b[cut:])
		c.status(1, nvme.Success)
	}
}

// TestUnfinishedGrant: the data of each of several R2Ts may arrive in part.
func TestUnfinishedGrant(t *testing.T) {
	h := newManual(t, options{})
	c, tags := h.grants(pdu.Params{})
	q, data := h.queue(), random(1, 16384)
	testutil.True(t, !q.acknowledged, "acknowledged before there is data")
	for i, tag := range tags {
		h.send(c.H2CData(0, uint16(i), tag, 0, data[:8192]))
		testutil.True(t, q.acknowledged, "the data of R2T %d is not acknowledged", i)
		h.send(c.H2CData(pdu.LastPDU, uint16(i), tag, 8192, data[8192:]))
		testutil.True(t, len(h.recv()) > 0 && !q.acknowledged, "no response to write %d", i)
	}
	h.close()
}

// A host without TCP_NODELAY sends a small piece when the one before it is acknowledged. No piece
// of a PDU, or of the data of an R2T, waits for a delayed acknowledgement. On a busy machine the
// kernel may send one before the reactor runs: then the write is repeated.
func TestPieces(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	testutil.IP(t, "link set lo up")
	tg, c := served(t, options{}, pdu.Params{}, 4, nvme.CATTRNoFlowControl)
	testutil.Must(t, c.Conn.(*net.TCPConn).SetNoDelay(false))
	const n = 8192
	data := random(1, n)
	for name, write := range map[string]func(){
		"header and data of a capsule": func() {
			b := c.inCapsule(1, 0, n, 1)
			c.send(b[:pdu.CapsuleCmdSize])
			c.send(b[pdu.CapsuleCmdSize:])
		},
		"data of an R2T in two PDUs": func() {
			c.send(c.request(nvme.NVMWrite, 1, 0, n))
			tag := c.r2t(1, n)
			c.send(c.H2CData(0, 1, tag, 0, data[:n/2]))
			c.send(c.H2CData(pdu.LastPDU, 1, tag, n/2, data[n/2:]))
		},
	} {
		testutil.Until(t, name+" without a wait", func() bool {
			tg.do(func() { // without TCP_QUICKACK the kernel delays every acknowledgement
				fd := tg.g.queues.At(0).fd
				testutil.Check(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0))
			})
			before := delayedACKs(t)
			write()
			c.status(1, nvme.Success)
			return delayedACKs(t) == before
		})
	}
}

// delayedACKs returns the number of acknowledgements that this network namespace has delayed.
func delayedACKs(t *testing.T) int {
	t.Helper()
	lines := strings.Split(string(testutil.Value(os.ReadFile("/proc/net/netstat"))(t)), "\n")
	at := slices.Index(strings.Fields(lines[0]), "DelayedACKs")
	return testutil.Value(strconv.Atoi(strings.Fields(lines[1])[at]))(t)
}
