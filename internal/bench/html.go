package bench

import (
	_ "embed"
	"errors"
	"fmt"
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
		license, err := static.Files.ReadFile(static.UPlotLicense)
		text, err2 := static.Files.ReadFile(static.UPlot)
		return template.JS(fmt.Sprintf("/*%s*/%s", license, text)), errors.Join(err, err2)
	},
	"style": func() (template.CSS, error) {
		text, err := static.Files.ReadFile(static.UPlotStyle)
		return template.CSS(text), err
	},
}).Parse(page))

// WriteHTML writes a report as a self-contained page, whose scripts draw the charts.
func (r *Report) WriteHTML(out io.Writer) error { return pageTemplate.Execute(out, r) }
