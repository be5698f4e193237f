package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// compare starts a target with the current configuration, and compares the views of hosts of both
// targets.
func (e *env) compare(i int, runs *model) {
	e.t.Helper()
	state := testutil.Value(os.ReadFile(e.live.stateFile()))(e.t)
	var file struct {
		Version int             `json:"version"`
		Kind    string          `json:"kind"`
		CRC32C  string          `json:"crc32c"`
		Data    json.RawMessage `json:"data"`
	}
	e.must(json.Unmarshal(e.fresh.like(state), &file))
	var data bytes.Buffer
	e.must(json.Compact(&data, file.Data))
	file.CRC32C = fmt.Sprintf("%08x", crc32.Checksum([]byte(file.Kind+"\n"+data.String()),
		crc32.MakeTable(crc32.Castagnoli)))
	state = testutil.Value(json.MarshalIndent(file, "", "  "))(e.t)
	e.must(os.WriteFile(e.fresh.stateFile(), append(state, '\n'), 0o600))
	e.fresh.start(runs)
	defer e.fresh.Stop()
	for h := range allHosts {
		live := strings.Split(e.live.seenBy(h, runs), "\n")
		fresh := strings.Split(e.fresh.seenBy(h, runs), "\n")
		for j := range max(len(live), len(fresh)) {
			if l, f := line(live, j), line(fresh, j); l != f {
				e.t.Fatalf("configuration %d: host %d sees\n%s\nand of a target that was started "+
					"with it\n%s\n%s\nthe log:\n%s", i, h, l, f, e.live.text(runs), e.live.Log)
			}
		}
	}
}

func line(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "nothing"
}

// like replaces the addresses of the other target by the addresses of p.
func (p *place) like(b []byte) []byte {
	b = bytes.ReplaceAll(b, []byte(p.live.tcp), []byte(p.tcp))
	return bytes.ReplaceAll(b, []byte(p.live.rdma), []byte(p.rdma))
}

// seenBy returns the view of a host and the limits, without values that differ between starts.
func (p *place) seenBy(h int, m *model) string {
	var b strings.Builder
	o := host.Options{
		HostNQN: hostNQN(h), HostID: [16]byte{byte(h + 1)}, Timeout: testutil.Patience,
	}
	if i := m.secrets[hostNQN(h)]; i > 0 {
		key := testutil.Value(auth.ParseKey(hostKeys[i]))(p.t)
		o.Key = key
	}
	ctx := testutil.Context(p.t)
	for _, name := range []string{
		"tcp 1", "tcp 2", "tcp 3", "tcp 4", "tcp 5", "rdma 2", "rdma 3",
	} {
		if !m.listens(name) {
			if c, err := host.Dial(ctx, p.transport(name), o); err == nil {
				c.Close()
				fmt.Fprintf(&b, "%s accepts connections\n", name)
			}
			continue
		}
		o.SubNQN = nvme.DiscoveryNQN
		c, err := host.Connect(ctx, p.transport(name), o)
		if refused := (*host.ConnectError)(nil); errors.As(err, &refused) {
			fmt.Fprintf(&b, "%s: %v\n", name, refused)
			continue
		}
		p.must(err)
		_, list, err := hosttest.Discover(ctx, c)
		p.must(err)
		c.Close()
		fmt.Fprintf(&b, "%s: CAP %x\n", name, c.CAP())
		for _, d := range list {
			addr := string(bytes.TrimRight(d.TRADDR[:], " \x00"))
			addr = strings.Replace(strings.Replace(addr, p.tcp, "TCP", 1), p.rdma, "RDMA", 1)
			d.TRADDR = [len(d.TRADDR)]byte{}
			fmt.Fprintf(&b, "  %s %x\n", addr, nvme.Append(nil, d))
		}
		fmt.Fprintf(&b, "  ANA log %s\n", p.ana(ctx, name, o))
	}
	for i := -1; i < subs; i++ {
		if o.SubNQN = anchorNQN; i >= 0 {
			o.SubNQN = fmt.Sprint(nqnPrefix, i)
		}
		p.subsystem(ctx, &b, o, m)
	}
	for _, l := range p.Target.Limits() {
		l.Waits, l.WaitSeconds = 0, 0
		fmt.Fprintf(&b, "limits %+v %+v\n", l.Object, l.Limits)
	}
	return b.String()
}

// ana returns the ANA log of the anchor at a listener.
func (p *place) ana(ctx context.Context, name string, o host.Options) string {
	o.SubNQN = anchorNQN
	c := testutil.Value(host.Connect(ctx, p.transport(name), o))(p.t)
	defer c.Close()
	b := testutil.Value(hosttest.GetLog(ctx, c, nvme.LogANA, nvme.NSIDAll, 0, 64, 0, false))(p.t)
	return fmt.Sprintf("%x", b)
}

func (p *place) subsystem(ctx context.Context, b *strings.Builder, o host.Options,
	m *model,
) {
	c, err := host.Connect(ctx, p.transport("tcp 1"), o)
	var refused *host.ConnectError
	if errors.As(err, &refused) {
		// The freshly started target does not know the subsystems that were removed for good.
		if refused.Status.Code() == nvme.ConnectInvalidParameters {
			refused.Status &^= nvme.DNR
		}
		fmt.Fprintf(b, "%s: %v\n", o.SubNQN, refused)
		return
	}
	p.must(err)
	defer c.Close()
	id := testutil.Value(c.Identify(ctx, nvme.CNSController, 0, 0))(p.t)
	clear(id[78:80]) // CNTLID (Base section 5.1.13.2.1)
	sub := m.subsystems[o.SubNQN]
	if sub.anyProtected() {
		id[520] &^= 1 << 2 // ONCS: Dataset Management
		id[525] &^= 1      // VWC: a volatile write cache is present
	}
	queues := testutil.Value(c.SetQueueCount(ctx, 200))(p.t)
	if sub != nil && sub.keys == "cntlid_min: 100" && c.CNTLID() < 100 {
		fmt.Fprintf(b, "%s: CNTLID %d\n", o.SubNQN, c.CNTLID())
	}
	fmt.Fprintf(b, "%s: CAP %x, %d queues\n  %x\n", o.SubNQN, c.CAP(), queues, id)
	nsids := testutil.Value(hosttest.ActiveNamespaces(ctx, c))(p.t)
	q := testutil.Value(c.OpenQueue(ctx, 1, 32))(p.t)
	defer q.Close()
	buf := testutil.Value(c.Map(4096))(p.t)
	for _, nsid := range nsids {
		ns := testutil.Value(c.Identify(ctx, nvme.CNSNamespace, nsid, 0))(p.t)
		if sub != nil && sub.namespaces[int(nsid)].protected() {
			ns[33] = 0 // DLFEAT (NVM section 4.1.5.1)
		}
		ids := testutil.Value(c.Identify(ctx, nvme.CNSDescriptors, nsid, 0))(p.t)
		clear(buf)
		var read error
		if o.SubNQN != anchorNQN { // that one is written all the time
			read = hosttest.Read(ctx, q, nsid, 0, 1, buf[:512])
		}
		fmt.Fprintf(b, "  %d: %x %x, first block %q, %v\n", nsid, bytes.TrimRight(ns, "\x00"),
			bytes.TrimRight(ids, "\x00"), bytes.TrimRight(buf[:512], "\x00"), read)
	}
}
