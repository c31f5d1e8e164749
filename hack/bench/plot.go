/*
Copyright The cnat Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"cmp"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// diagrams are the figures to draw over the number of objects.
var diagrams = []diagram{
	{"All are due at one instant", "runs", "seconds after that instant", []line{
		{"CronJobs: the last Pod exists", "cronjob", "CronJob: last Pod late"},
		{"Ats: all are DONE", "burst", "all DONE"},
		{"the least that a system must write", "burst", "floor: all recorded"},
		{"Ats: the last Pod exists", "burst", "last Pod late"},
		{"a loop that only creates the Pods", "burst", "bare loop: last Pod"},
	}},
	{"Ats that wait for their time", "pending Ats", "MiB, seconds", []line{
		{"memory of the controller, MiB", "pending", "RSS"},
		{"seconds from its start until it is ready", "pending", "from start to armed"},
	}},
}

type diagram struct {
	title, x, y string
	lines       []line
}

type line struct{ name, scenario, figure string }

// points returns the line's figures, sorted by the number of objects.
func (l line) points(results []result) plotter.XYs {
	var points plotter.XYs
	for _, r := range results {
		// A logarithmic scale has no zero.
		if r.Scenario == l.scenario && r.Figure == l.figure && r.Value > 0 {
			points = append(points, plotter.XY{X: float64(r.Number), Y: r.Value})
		}
	}
	slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	return points
}

const (
	diagramWidth, diagramHeight = 24 * vg.Centimeter, 8 * vg.Centimeter
	legendWidth                 = 9 * vg.Centimeter
)

// drawSeries draws the diagrams of the results, one below the other.
func drawSeries(results []result, path string) error {
	diagrams := slices.DeleteFunc(slices.Clone(diagrams), func(d diagram) bool {
		return !slices.ContainsFunc(d.lines, func(l line) bool { return len(l.points(results)) > 0 })
	})
	if len(diagrams) == 0 {
		return errors.New("there is nothing to draw")
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	canvas := vgsvg.New(diagramWidth, vg.Length(len(diagrams))*diagramHeight)
	tiles := draw.Tiles{Rows: len(diagrams), Cols: 1, PadY: vg.Centimeter, PadTop: vg.Centimeter / 4, PadBottom: vg.Centimeter / 4}
	for i, d := range diagrams {
		if err := d.draw(results, tiles.At(draw.New(canvas), 0, i)); err != nil {
			return err
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = canvas.WriteTo(file)
	return err
}

// draw draws a diagram, and its legend on the right.
func (d diagram) draw(results []result, canvas draw.Canvas) error {
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = d.title, d.x, d.y
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(powersOfTen)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(powersOfTen)
	p.Add(plotter.NewGrid())
	legend.Top, legend.Left, legend.Padding = true, true, vg.Centimeter/4
	for i, l := range d.lines {
		points := l.points(results)
		if len(points) == 0 {
			continue
		}
		solid, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		solid.Color, dots.Color, dots.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(solid, dots)
		legend.Add(l.name, solid, dots)
	}
	p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(p.Y.Min))), math.Pow(10, math.Ceil(math.Log10(p.Y.Max)))
	p.Draw(draw.Crop(canvas, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(canvas, diagramWidth-legendWidth+vg.Centimeter/2, 0, 0, -vg.Centimeter))
	return nil
}

// powersOfTen returns a tick for each power of ten between least and most, and the next ones.
func powersOfTen(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for power := 0.01; power <= 10*most; power *= 10 {
		if 10*power > least {
			ticks = append(ticks, plot.Tick{Value: power, Label: strconv.FormatFloat(power, 'g', 10, 64)})
		}
	}
	return ticks
}
