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
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// series are the figures to draw over the number of objects, for each diagram.
var series = []struct {
	title string
	lines []line
}{
	{"Due at one instant", []line{{"burst-long", "bare loop"}, {"burst-long", "last Pod late"}, {"burst-long", "all DONE"}, {"cronjob", "CronJob: last Pod late"}}},
	{"Ats pending", []line{{"pending", "RSS"}, {"pending", "from start to armed"}, {"pending", "idle CPU"}}},
}

type line struct{ scenario, figure string }

// drawSeries draws the series among the results side by side.
func drawSeries(results []result, path string) error {
	canvas := vgsvg.New(vg.Length(len(series))*12*vg.Centimeter, 9*vg.Centimeter)
	tiles := draw.Tiles{Rows: 1, Cols: len(series), PadX: vg.Centimeter, PadTop: vg.Centimeter / 4, PadRight: vg.Centimeter}
	for i, s := range series {
		p := plot.New()
		p.Title.Text = s.title
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Legend.Top, p.Legend.Left = true, true
		p.Add(plotter.NewGrid())
		for j, l := range s.lines {
			points := l.points(results)
		if len(points) == 0 {
				continue
			}
			solid, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			solid.Color, dots.Color, dots.Shape = plotutil.Color(j), plotutil.Color(j), plotutil.Shape(j)
			p.Add(solid, dots)
			p.Legend.Add(l.figure+", "+unit, solid, dots)
		}
		p.Y.Max *= 10 // Leave room for the legend.
		p.Draw(tiles.At(draw.New(canvas), i, 0))
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = canvas.WriteTo(file)
	return err
}
