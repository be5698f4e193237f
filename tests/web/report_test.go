package web

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nvmf-target/nvmf-target/internal/bench"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestReport: the page of a report of bench draws its charts.
func TestReport(t *testing.T) {
	r := testutil.Value(bench.ReadReport("../../internal/bench/testdata/report.json"))(t)
	name := filepath.Join(t.TempDir(), "report.html")
	f := testutil.Value(os.Create(name))(t)
	testutil.Must(t, r.WriteHTML(f))
	testutil.Must(t, f.Close())
	b := newBrowser(t)
	run(b, chromedp.Navigate("file://"+name))
	const charts = "document.querySelectorAll('#charts0 canvas').length"
	testutil.Equal(t, eval[int](b, charts), 5, "charts")
	b.clean()
}
