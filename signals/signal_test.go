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

package signals

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestSetupSignalHandler sends signals to a process that does not end when it is asked to.
func TestSetupSignalHandler(t *testing.T) {
	if os.Getenv("CNAT_WAIT_FOR_SIGNALS") != "" {
		ctx := SetupSignalHandler()
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("asked")
		time.Sleep(time.Hour)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSetupSignalHandler$")
			process.Env = append(os.Environ(), "CNAT_WAIT_FOR_SIGNALS=yes")
			output, err := process.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"ready", "asked"} {
				var got string
				if _, err := fmt.Fscanln(output, &got); err != nil || got != want {
					t.Fatalf("it says %q, %v; want %q", got, err, want)
				}
				if err := process.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- process.Wait() }()
			for range 1000 {
				select {
				case err := <-ended:
					if err == nil {
						t.Error("it ended well, although it was cut off")
					}
					return
				case <-time.After(10 * time.Millisecond):
					_ = process.Process.Signal(signal) // The one before may have come too early.
				}
			}
			t.Error("it does not end")
		})
	}
}
