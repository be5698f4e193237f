package bench

import (
	_ "embed"
	"html/template"
	"io"

	"github.com/nvmf-target/nvmf-target/internal/web/static"
)

//go:embed report.html.tmpl
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"columns": func() []string { return columns },
	"rows":    (*Group).rows, "cpu": (*Run).cpu, "late": (*Group).late,
	"script": func() (template.JS, error) {
		text, err := static.Files.ReadFile(static.UPlot)
		return template.JS(text), err
	},
	"style": func() (template.CSS, error) {
		text, err := static.Files.ReadFile(static.UPlotStyle)
		return template.CSS(text), err
	},
}).Parse(page))

// WriteHTML writes a report as a self-contained page. Its scripts draw charts of its JSON.
func (r *Report) WriteHTML(out io.Writer) error { return pageTemplate.Execute(out, r) }
