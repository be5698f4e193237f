// Package web tests the page (internal/web) in Chromium, against a target with load.
package web

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	page "github.com/nvmf-target/nvmf-target/internal/web"
)

func TestMain(m *testing.M) {
	page.Every /= 10 // most of a test waits for the next state
	os.Exit(m.Run())
}

// browser is a tab of Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // shown by the console: errors, warnings, violations of the policy
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := testutil.Program(t, "scripts/deps.sh test installs chromium-headless-shell",
		"chromium-headless-shell", "chromium", "google-chrome")
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		testutil.Check(t, chromedp.Cancel(ctx))
		cancel()
	})
	b := &browser{t: t, ctx: ctx}
	// The browser starts here, and ends with the context of its first action.
	testutil.Value(chromedp.Run(ctx, chromedp.Navigate("about:blank")))(t)
	testutil.Must(t, chromedp.Listen(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			b.note(string(e.Type) + " in the console")
		case *runtime.EventExceptionThrown:
			b.note(e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			b.note(e.Entry.Text + " " + e.Entry.URL)
		}
	}))
	command(b, log.Enable, cdp.Empty{})
	return b
}

func (b *browser) note(problem string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, problem)
}

// clean fails the test if the console shows anything unexpected.
func (b *browser) clean(expected ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		testutil.True(b.t, slices.ContainsFunc(expected,
			func(e string) bool { return strings.Contains(p, e) }), "the console shows: %s", p)
	}
	b.problems = nil
}

// run returns the result of an action.
func run[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testutil.Patience)
	defer cancel()
	v := testutil.Value(chromedp.Run(ctx, action))(b.t)
	return v
}

// command returns the answer to a command of the protocol.
func command[P, R any](b *browser, c cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testutil.Patience)
	defer cancel()
	r := testutil.Value(chromedp.Call(ctx, c, params))(b.t)
	return r
}

// perform runs statements. Their value, which may be a promise, depends on the version of Chromium
// and is dropped.
func perform(b *browser, statements string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf("(() => { %s; return true; })()", statements))
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	shown := ""
	defer func() {
		if b.t.Failed() {
			b.t.Logf("the page before: %s", shown)
		}
	}()
	testutil.Until(b.t, expression, func() bool {
		if eval[bool](b, expression) {
			return true
		}
		shown = eval[string](b, "document.body.innerText")
		run(b, chromedp.Sleep(20*time.Millisecond)) // the browser needs the processor
		return false
	})
}
