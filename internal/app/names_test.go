package app_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// oddNames are valid NQNs that need escaping somewhere: in paths, in file names, in YAML and JSON,
// in labels of metrics or in a shell.
var oddNames = []string{
	"hostnqn", "nqn.io-1", "nqn.2008-04.org.example.lan.host1", ".", "..", "a/../b", "//",
	"a b", " a ", "%2F", "%", "a?b#c", "a&b=c", `"quoted"`, `back\slash`, "<img src=x>", "${HOME}",
	"$${a}", "{x}", "-v", "--help", "123", "1e3", "0x1F", "null", "~", "true", "[a, b]", "{a: b}",
	"# no", "a: b", "- a", "*a", "&a", "!a", "süß", "名前", "\u202eabc", "\u2028", "\ufeffx", "'",
	"a'b", ";ls", "`ls`", "$(ls)", "\U0001F600", "::", "a::b", "subsystems", "nqn", "2026-11-26",
	strings.Repeat("x/", 111), strings.Repeat("ü", 111),
}

// TestOddNames: subsystems and hosts may have any name. They are created, kept across a restart,
// served, shown and deleted.
func TestOddNames(t *testing.T) {
	t.Parallel() // it mostly waits for storage
	o := newOrchestrated(t)
	o.Stop()
	o.write("metrics: {listen: '127.0.0.1:0'}\n")
	o.start()
	for i, name := range oddNames {
		sub := control.Object{Subsystem: name}
		o.put(sub, "")
		if i%4 == 0 { // each takes longer than the one before
			o.put(control.Object{Subsystem: name, Host: oddNames[len(oddNames)-1-i]}, "")
			o.put(control.Object{Subsystem: name, NSID: 1}, `{"backend":"ram","size":"4KiB"}`)
		}
	}
	o.same()
	o.Stop()
	o.start()
	list := testutil.Value(control.GetSubsystems.From(t.Context(), o.client))(o.t)
	var names []string
	for _, s := range list {
		names = append(names, s.NQN)
	}
	for _, name := range oddNames {
		testutil.True(t, slices.Contains(names, name), "there is no subsystem %q any more", name)
	}
	label := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i := 0; i < len(oddNames); i += 4 {
		sub, hostNQN := oddNames[i], oddNames[len(oddNames)-1-i]
		options := hostOptions(sub)
		options.HostNQN = hostNQN
		c, err := host.Connect(t.Context(), host.TCP{Addr: o.Addrs()[0].AddrPort}, options)
		if err != nil {
			t.Errorf("%q at %q: %v", hostNQN, sub, err)
			continue
		}
		text := scraped(t, o.Harness)
		c.Close()
		for key, value := range map[string]string{"subsystem": sub, "host": hostNQN} {
			want := key + `="` + label.Replace(value) + `"`
			testutil.True(t, strings.Contains(text, want), "no metric has %s", want)
		}
	}
	for _, name := range oddNames {
		o.delete(control.Object{Subsystem: name}, true)
	}
	files := o.files()
	testutil.True(t, len(files) == 0, "%q are left", files)
}

// over returns a client that connects to a Unix socket.
func over(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
}

// request makes a request as curl does, and returns the status, the header and the body.
func (o *orchestrated) request(op, body string) (int, http.Header, string) {
	o.t.Helper()
	method, path, _ := strings.Cut(op, " ")
	r, err := http.NewRequestWithContext(o.t.Context(), method, "http://target"+path,
		strings.NewReader(body))
	o.must(err)
	answer, err := over(filepath.Join(filepath.Dir(o.file), "control.sock")).Do(r)
	o.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	o.must(err)
	o.said.Write(text)
	return answer.StatusCode, answer.Header, string(text)
}
