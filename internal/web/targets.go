package web

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// The limits for other targets.
const (
	// maxAnswer is the size limit of a state, or history, in bytes.
	maxAnswer = 4 << 20
	maxReason = 200 // bytes of the error text of an answer
	// silence is the longest wait for the next state of another target.
	silence = 10 * time.Second
	// The time until an unreachable target is asked again doubles from soon to late.
	soon, late = time.Second, 16 * time.Second
)

var (
	errSilent   = fmt.Errorf("no state within %v", silence)
	errTooLarge = fmt.Errorf("it has sent %d MiB without a state: does url name a page of a "+
		"target?", maxAnswer>>20)
	errMistake = errors.New("a bug in this program, see the log")
	errEnded   = errors.New("it has closed the connection")
)

// Target is another target on the page.
type Target struct {
	// Name is its name on the page, URL its own page, CA a PEM file, "" for the machine's CAs.
	Name, URL, CA string
	// Token returns the token that its page requires; nil means none. Any goroutine may call it.
	Token func() string
}

// others are the other targets on the page.
type others struct {
	list   []*other
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newOthers returns targets that are asked while pages are open. safely is the method of a sampler.
func newOthers(targets []Target, safely func(func()) bool) *others {
	o := &others{}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	for _, t := range targets {
		one := &other{
			Target: t, feed: newFeed(), safely: safely, dial: (&net.Dialer{}).DialContext,
		}
		o.list = append(o.list, one)
		o.wg.Go(func() { one.run(o.ctx) })
	}
	return o
}

// close ends all connections.
func (o *others) close() {
	o.cancel()
	o.wg.Wait()
}

// find returns the target with a name, nil if there is none.
func (o *others) find(name string) *other {
	i := slices.IndexFunc(o.list, func(t *other) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return o.list[i]
}

// overview returns the summaries of own and of all others.
func (o *others) overview(own *feed) []byte {
	list := []summary{own.summary("")}
	for _, t := range o.list {
		list = append(list, t.summary(t.Name))
	}
	text, _ := json.Marshal(list)
	return text
}

// other is another target, with one connection for all open pages, and none without a page.
type other struct {
	Target
	feed
	asking sync.Mutex // held while a history is fetched: one at a time
	safely func(func()) bool
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

func (o *other) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-o.opened:
			o.follow(ctx)
		case <-ctx.Done():
		}
	}
}

// follow receives states until no page is open.
func (o *other) follow(ctx context.Context) {
	for wait := soon; o.goesOn(ctx); wait = min(2*wait, late) {
		states, err := 0, errMistake
		o.safely(func() { states, err = o.stream(ctx) })
		if states > 0 {
			wait = soon
		}
		if states == 0 || !errors.Is(err, errEnded) { // otherwise it has ended after streamTime
			o.fail(err)
		}
		pause(ctx, wait)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// stream receives states from a connection until it ends, and returns their number.
func (o *other) stream(ctx context.Context) (states int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	defer func() { err = cmp.Or(context.Cause(ctx), err) }()
	body, err := o.ask(ctx, "events")
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	limit := &io.LimitedReader{R: body, N: maxAnswer}
	lines := bufio.NewScanner(limit)
	lines.Buffer(nil, maxAnswer+1) // limit ends before
	for lines.Scan() && limit.N > 0 {
		text, isState := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !isState {
			continue
		}
		if err := o.take(text); err != nil {
			return states, err
		}
		states++
		if o.idle() {
			return states, errEnded
		}
		watchdog.Stop()
		pause(ctx, Every/2) // do not receive states faster
		watchdog.Reset(silence)
		limit.N = maxAnswer
	}
	switch {
	case limit.N <= 0:
		return states, errTooLarge
	case lines.Err() != nil:
		return states, fmt.Errorf("the connection is lost: %w", lines.Err())
	}
	return states, errEnded
}

// take publishes a state.
func (o *other) take(text []byte) error {
	var got struct{ Summary *summary }
	if err := json.Unmarshal(text, &got); err != nil || got.Summary == nil {
		return errors.New("it sends no states: does url name a page of a target of this version?")
	}
	// A browser takes a CR for the end of a line; JSON has it only between values.
	state := strings.ReplaceAll(o.hide(string(text)), "\r", "")
	got.Summary.Error, got.Summary.Time = "", time.Now()
	o.publish([]byte(state), got.Summary)
	return nil
}

func (o *other) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pages == 0
}

// fail records why there is no newer state. The last one stays.
func (o *other) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.hide(err.Error())
	o.about.Error = text[:min(len(text), 2*maxReason)]
}

// hide masks secrets in a text of another target, including the token that it was sent.
func (o *other) hide(text string) string {
	if text = secret.Mask(text); o.Token != nil {
		text = strings.ReplaceAll(text, o.Token(), secret.Hidden)
	}
	return text
}

// history returns the last hour of a namespace of the target.
func (o *other) history(ctx context.Context, of string) ([]byte, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	body, err := o.ask(ctx, "history?of="+url.QueryEscape(of))
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = errTooLarge
	}
	return []byte(o.hide(string(text))), err
}

// ask asks the page of the target. It follows no redirect and uses no proxy, because the token is
// only for the target. The caller closes the body.
func (o *other) ask(ctx context.Context, path string) (io.ReadCloser, error) {
	trusted, err := httpd.Certificates{CA: o.CA}.Client()
	if err != nil {
		return nil, fmt.Errorf("%w: correct its ca in web.targets", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimSuffix(o.URL, "/")+"/"+path, nil)
	if err != nil {
		return nil, err
	}
	if o.Token != nil {
		r.Header.Set("Authorization", "Bearer "+o.Token())
	}
	client := http.Client{
		Transport: &http.Transport{
			DialContext: o.dial, TLSClientConfig: trusted, DisableKeepAlives: true,
			DisableCompression: true, MaxResponseHeaderBytes: 8 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	a, err := client.Do(r)
	if p, ok := errors.AsType[*url.Error](err); ok {
		err = p.Err
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w%s", err, hintOf(err))
	case a.StatusCode == http.StatusOK:
		return a.Body, nil
	}
	defer func() { _ = a.Body.Close() }()
	why, _ := io.ReadAll(io.LimitReader(a.Body, maxReason))
	first, _, _ := strings.Cut(string(why), "\n")
	switch {
	case a.StatusCode == http.StatusUnauthorized:
		first += " (set its token_file in web.targets)"
	case a.StatusCode/100 == 3: // the text is HTML
		first = "redirects are not followed, url in web.targets must name the page itself"
	}
	return nil, fmt.Errorf("it answers %s: %s", a.Status, first)
}

// hintOf returns a fix for an error of a connection.
func hintOf(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return " (set its ca in web.targets)"
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return " (is it running, with web.listen at this address?)"
	}
	return ""
}
