package web

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const (
	database = "nqn.2026-11.io.example:database"
	// hostile is a possible name of a host.
	hostile = `nqn.2026-11.io.example:<img src=x onerror="document.title='hostile'">`
	client  = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
)

// world is a target with a page, and hosts that load it.
type world struct {
	t    *testing.T
	dir  string
	port uint16 // of the page
	more string // keys of web
	log  *testutil.Log
	s    *app.Server
}

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	w := &world{
		t: t, dir: t.TempDir(), port: testutil.FreePort(t), more: strings.Join(more, ""),
		log: new(testutil.Log),
	}
	w.start()
	t.Cleanup(w.stop)
	return w
}

// write writes the configuration file.
func (w *world) write() {
	w.t.Helper()
	text := fmt.Sprintf(`
listeners: [{transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}]
reactors: {count: 1, memory: 64MiB, spin: 0s}
control: {socket: ""}
web: {listen: "127.0.0.1:%d"%s}
subsystems:
  - nqn: %s
    hosts: [%s]
    namespaces:
      - {nsid: 1, backend: ram, size: 64MiB}
      - {nsid: 2, backend: ram, size: 1GiB, block_size: 4096}
  - nqn: nqn.2026-11.io.example:archive
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: file, path: /srv/not-there/archive.img}
`, w.port, w.more, database, client)
	testutil.Must(w.t, os.WriteFile(filepath.Join(w.dir, "c.yaml"), []byte(text), 0o600))
}

func (w *world) start() {
	w.t.Helper()
	w.write()
	load := func(...config.Option) (*config.Config, error) {
		text, err := os.ReadFile(filepath.Join(w.dir, "c.yaml"))
		if err != nil {
			return nil, err
		}
		return app.Parse("c.yaml", text, nil)
	}
	c := testutil.Value(load())(w.t)
	w.s = app.NewServer(app.Options{
		Config: c, Log: w.log.Logger(), Load: load, Version: "0.1.0",
	})
	testutil.Must(w.t, w.s.Start())
}

func (w *world) stop() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	testutil.Check(w.t, w.s.Stop(ctx))
}

func (w *world) connect(ctx context.Context, nqn string) (*host.Controller, error) {
	return host.Connect(ctx, host.TCP{Addr: w.s.Addrs()[0].AddrPort}, host.Options{
		HostNQN: nqn, HostID: [16]byte{1}, SubNQN: database, KATO: 30 * time.Second,
		Timeout: testutil.Patience,
	})
}

// load reads and writes until the returned function is called, and is refused once.
func (w *world) load() (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	if h, err := w.connect(ctx, hostile); err == nil {
		h.Close()
		w.t.Error("a host that is not allowed has connected")
	}
	h := testutil.Value(w.connect(ctx, client))(w.t)
	path := testutil.Value(w.connect(ctx, client))(w.t)
	var loads sync.WaitGroup
	for nsid := uint32(1); nsid <= 2; nsid++ {
		q, err := h.OpenQueue(ctx, uint16(nsid), 32)
		testutil.Must(w.t, err)
		data := testutil.Value(h.Map(16 << 10))(w.t)
		loads.Go(func() {
			for i := uint64(0); ctx.Err() == nil; i++ {
				if i%3 == 0 {
					err = hosttest.Write(ctx, q, nsid, i%64, 4, data[:4*512<<(3*(nsid-1))], 0)
				} else {
					err = hosttest.Read(ctx, q, nsid, i%64, 1, data[:512<<(3*(nsid-1))])
				}
				if err != nil && ctx.Err() == nil {
					w.t.Error(err)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(i%5) * 100 * time.Microsecond):
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		cancel()
		loads.Wait()
		h.Close()
		path.Close()
	})
}

// TestPage: the page shows the work of a target live, even after a restart. Names chosen by peers
// are shown as text. The page fits a phone, has both themes, and causes no error in the console.
func TestPage(t *testing.T) {
	b, w := newBrowser(t), newWorld(t)
	stop := w.load()
	defer func() { stop() }()
	emulate(b, 1280, 900, "light")
	w.open(b)
	b.until(`/^[1-9].*\/s$/.test(document.getElementById('t-iops').textContent)`)
	for _, text := range []string{
		"2 of 3", "1 (2 controllers)", "uuid:11111111-2222",
		"is not served: its storage is not there",
		"64.0\u00a0MiB", "ready", "pending", `onerror="document.title='hostile'"`, "half of the commands",
	} {
		testutil.True(t, strings.Contains(eval[string](b, "document.body.innerText"), text),
			"the page does not say %q", text)
	}
	for _, nqn := range []string{database, client} { // with short names
		if !eval[bool](b, fmt.Sprintf(`document.querySelector('td[title=%q]') !== null`, nqn)) {
			t.Errorf("%s is not a name of a cell", nqn)
		}
	}
	b.until(`document.getElementById('plan').textContent.includes('the configuration of the file')`)
	// a path has its queues, round-trip time and remaining keep alive time
	b.until(`/3.32 entries.*[0-9] (µs|ms).*[0-9]+ of [0-9]+ s/s.test(
		document.getElementById('hosts').innerText.replace(/\u00a0/g, ' '))`)
	testutil.True(t, eval[int](b, `document.querySelectorAll('main img').length`) == 0 &&
		eval[string](b, "document.title") != "hostile", "text of a peer became a part of the page")
	counted := eval[string](b, `document.getElementById('t-iops').textContent`)
	b.until(fmt.Sprintf(`document.getElementById('t-iops').textContent !== %q`, counted))
	if drawn := eval[bool](b, `(c => c.getContext('2d').getImageData(0, 0, c.width, c.height)
		.data.some(v => v))(document.getElementById('heat'))`); !drawn {
		t.Error("the heat map is empty")
	}
	choose := func(which string) {
		eval[bool](b, fmt.Sprintf(`(w => { w.value = %q; return w.dispatchEvent(new Event('change')); })(
			document.getElementById('which'))`, which))
	}
	choose("2 of " + database)
	testutil.True(t, eval[string](b, "document.getElementById('which').value") != "",
		"a namespace cannot be chosen")
	secondBrowser(t, b, w)
	groups(b)
	b.clean()

	fill, _ := time.ParseDuration(os.Getenv("NVMF_WEB_FILL"))
	run(b, chromedp.Sleep(fill)) // screenshots with full charts
	choose("")
	back := map[string]string{}
	for _, size := range []struct {
		name          string
		width, height int64
	}{{"desktop", 1280, 1340}, {"phone", 390, 844}} {
		for _, name := range []string{"light", "dark"} {
			emulate(b, size.width, size.height, name)
			back[name] = eval[string](b, "getComputedStyle(document.body).backgroundColor")
			if n := eval[int64](b, "document.documentElement.scrollWidth"); n > size.width {
				t.Errorf("%s: %d pixels are wide on %d", size.name, n, size.width)
			}
			screenshot(b, size.name+"-"+name)
			perform(b, "document.getElementById('network').scrollIntoView()")
			if wide := eval[bool](b, `(t => t.scrollWidth > t.clientWidth)(
				document.getElementById('hosts-table'))`); wide {
				t.Errorf("%s: the paths of hosts do not fit", size.name)
			}
			screenshot(b, size.name+"-"+name+"-hosts")
			perform(b, "scrollTo(0, 0)")
		}
	}
	testutil.True(t, back["light"] != back["dark"], "both themes are %s", back["dark"])
	emulate(b, 1280, 900, "light")
	for range 2 { // system, light, dark
		run(b, chromedp.Click("#theme"))
	}
	testutil.Equal(t, eval[string](b, "document.documentElement.dataset.theme"), "dark",
		"the button makes the theme")

	stop()
	w.stop()
	b.until(`document.getElementById('live').dataset.state === 'lost'`)
	w.start()
	stop = w.load()
	b.until(`document.getElementById('live').dataset.state === 'live'`)
	b.until(`/^[1-9].*\/s$/.test(document.getElementById('t-iops').textContent)`)
	b.clean("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
		"net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE")
}

// groups: the table of groups of gateways has a row for each, which stays in the next state. A
// target without groups has no such table.
func groups(b *browser) {
	b.t.Helper()
	testutil.Equal(b.t, eval[string](b, `(() => {
		const g = {ana_group: 1, state: 'serving', holder: 'a', holder_seconds: 300, drained: false,
			gateways: [{name: 'a', hosts: true}, {name: '<b>'}], fenced: [{name: 'c'}],
			fence_seconds: 1e6, check_seconds: 60, configuration: 7, differences: ['d']};
		const none = $('groups-table').hidden, list = $('groups').rows;
		show({...before, groups: [g]});
		const first = list[0];
		const other = {...g, ana_group: 2, holder: '', drained: true, fenced: []};
		show({...before, groups: [g, other]});
		return [none, $('groups-table').hidden, list[0] === first,
			...[...list].flatMap(r => [...r.cells]).map(c => c.textContent)].join('|');
	})()`), "true|false|true|1|serving|afor 5 minutes|a with hosts, <b>|"+
		"cfor 11 days, checked 60 seconds ago|7d|2|serving, drained|nobodyfor 5 minutes|"+
		"a with hosts, <b>|nonefor 11 days, checked 60 seconds ago|7d", "the table of groups")
}

// secondBrowser: a page that is opened or loaded again has the earlier values in its charts.
func secondBrowser(t *testing.T, b *browser, w *world) {
	const seen = `past.filter(p => p.counts && p.reads > 0).length`
	b.until(seen + " >= 3")
	oldest := eval[float64](b, "past.find(p => p.reads > 0).t")
	b.clean()
	run(b, chromedp.Reload())
	other := newBrowser(t)
	w.open(other)
	for _, b := range []*browser{b, other} {
		b.until(seen + " >= 3")
		if got := eval[float64](b, "past.find(p => p.reads > 0).t"); got != oldest {
			t.Errorf("the history begins at %v s, and before at %v s", got, oldest)
		}
		perform(b, `$('which').value = '1 of `+database+`'; $('which').dispatchEvent(new Event('change'))`)
		b.until(seen + " >= 3")
		perform(b, `$('span').value = 3600; $('span').dispatchEvent(new Event('change'))`)
		b.until("columns().length > 0 && columns().length < 10")
		perform(b, `$('which').value = ''; $('which').dispatchEvent(new Event('change'));
			$('span').value = 300; $('span').dispatchEvent(new Event('change'))`)
	}
	other.clean()
}

// TestTargets: a page shows two targets live, each with its history. A stopped target is shown as
// away, with the time of its last state, while the other one goes on, and is shown again when it is
// back. A reload removes it from the page. Its token is never in the page.
func TestTargets(t *testing.T) {
	const token = "0123456789abcdefABCDEF"
	b := newBrowser(t)
	other := newWorld(t, ", token: "+token)
	w := newWorld(t, fmt.Sprintf(
		`, targets: [{name: other, url: "http://127.0.0.1:%d", token: %s}]`, other.port, token))
	stop := other.load()
	defer func() { stop() }()
	emulate(b, 1280, 900, "light")
	w.open(b)
	host := eval[string](b, "$('host').textContent")
	b.until(`/1 problem/.test($('targets').innerText) &&
		/2 of 3 namespaces ready, 1 host, reads [1-9]/.test($('targets').innerText)`)
	b.until(`$('t-iops').textContent === '0/s'`)
	click := func(i int) {
		run(b, chromedp.Click(fmt.Sprintf("#targets-list button:nth-child(%d)", i)))
	}
	const isLive = `$('live').dataset.state === 'live'`
	click(2)
	b.until(isLive + ` && $('host').textContent === 'other' && location.search === '?target=other'`)
	b.until(`/^[1-9].*\/s$/.test($('t-iops').textContent)`)
	b.until(`past.filter(p => p.counts && p.reads > 0).length >= 2`)
	perform(b, `$('which').value = '1 of `+database+`';
		$('which').dispatchEvent(new Event('change'))`)
	b.until(`past.filter(p => p.counts && p.reads > 0).length >= 2`)
	screenshot(b, "targets")
	b.clean()

	stop()
	other.stop()
	const isAway = `/^other is away: .*Its last state is of [0-9:]{8}/.test($('live').textContent) &&
		$('live').dataset.state === 'lost' && $('targets').innerText.includes('Away: ')`
	b.until(isAway)
	screenshot(b, "targets-away")
	click(1)
	b.until(isLive + ` && $('t-iops').textContent === '0/s' && location.search === ''`)
	testutil.Equal(t, eval[string](b, "$('host').textContent"), host, "the title")
	first := eval[string](b, "before.time")
	b.until(fmt.Sprintf("before.time !== %q", first)) // it goes on
	click(2)
	b.until(isAway + ` && before !== null && $('storage').innerText.includes('64.0')`)
	other.start()
	stop = other.load()
	b.until(isLive + ` && /^[1-9].*\/s$/.test($('t-iops').textContent)`)
	run(b, chromedp.Reload())
	b.until(isLive + ` && $('host').textContent === 'other' && !$('targets').hidden`)
	testutil.True(t, !strings.Contains(eval[string](b, "document.documentElement.outerHTML"),
		token), "the token is in the page")
	w.more = ""
	w.write()
	testutil.Value(w.s.Reload("test", t.Name()))(t)
	b.until(isLive + ` && $('host').textContent !== 'other' && $('targets').hidden`)
	b.clean("502 (Bad Gateway)", "404 (Not Found)")
	testutil.True(t, !strings.Contains(w.log.String()+other.log.String(), token),
		"the token is in the log")
}

func (w *world) open(b *browser) {
	run(b, chromedp.Navigate(fmt.Sprintf("http://127.0.0.1:%d/", w.port)))
	b.until(`document.getElementById('live').dataset.state === 'live'`)
}

// emulate gives the browser a size and the color scheme of the system.
func emulate(b *browser, width, height int64, theme string) {
	b.t.Helper()
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500,
	})
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	b.until(fmt.Sprintf("innerWidth === %d", width))
}

// screenshot saves an image of the page, if NVMF_WEB_SCREENSHOTS is a directory.
func screenshot(b *browser, name string) {
	b.t.Helper()
	dir := os.Getenv("NVMF_WEB_SCREENSHOTS")
	if dir == "" {
		return
	}
	run(b, chromedp.Sleep(200*time.Millisecond)) // until it is drawn
	image := run(b, chromedp.CaptureScreenshot())
	testutil.Must(b.t, os.WriteFile(filepath.Join(dir, name+".png"), image, 0o600))
}

// TestPageAccessibility: the page has landmarks, headings, named tables and controls, and the
// keyboard reaches all of them, beginning with a link to the content.
func TestPageAccessibility(t *testing.T) {
	b, w := newBrowser(t), newWorld(t)
	stop := w.load()
	defer stop()
	w.open(b)
	nodes := command(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes
	var tree []string
	for _, n := range nodes {
		if n.Ignored || n.Role == nil || n.Name == nil {
			continue
		}
		role := strings.Trim(string(n.Role.Value), `"`)
		name := strings.Trim(string(n.Name.Value), `"`)
		tree = append(tree, strings.TrimSpace(role+" "+name))
		switch role {
		case "button", "link", "combobox", "table", "region", "navigation", "image", "heading":
			testutil.True(t, name != "", "a %s has no name", role)
		}
	}
	if os.Getenv("NVMF_WEB_SCREENSHOTS") != "" {
		t.Log(strings.Join(tree, "\n"))
	}
	for _, want := range []string{
		"banner", "main", "navigation Sections", "region Overview", "region Load",
		"region Storage", "region Hosts and paths", "region Configuration",
		"region Refusals and events", "heading Overview", "table Namespaces",
		"table Paths of hosts", "columnheader State", "status", "cell ready",
		"combobox Shown:", "button Theme: system", "link Skip to the content",
	} {
		testutil.True(t, slices.Contains(tree, want), "the accessibility tree has no %q", want)
	}
	var reached []string
	for range 9 {
		run(b, chromedp.KeyEvent(kb.Tab))
		reached = append(reached,
			eval[string](b, `(e => e.id || e.textContent)(document.activeElement)`))
		if eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
			t.Errorf("%s shows no focus", reached[len(reached)-1])
		}
	}
	want := []string{
		"Skip to the content", "theme", "Overview", "Load", "Storage", "Hosts",
		"Configuration", "Log", "which",
	}
	testutil.True(t, slices.Equal(reached, want), "the keyboard reaches %q", reached)
	b.clean()
}
