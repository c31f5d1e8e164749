//go:build integration

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

package integration

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// outage is how long the API server is away.
const outage = time.Minute

// TestOutage takes the API server away while an At becomes due: it starts within
// five seconds of its return, as does one that is created then. With a lease, the
// leader ends, for it cannot renew it, and is started anew by its name.
func TestOutage(t *testing.T) {
	t.Parallel()
	installCRD(t)
	for name, leaderElect := range map[string]bool{"without a lease": false, "with a lease": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			b := newBreaker(t)
			args := []string{"-master=https://" + b.address, "-leader-elect-resource-namespace=" + namespace}
			if leaderElect {
				args = append(args, "-leader-elect", "-leader-elect-identity=leader")
			}
			c := startController(t, namespace, args...)
			waitLog(t, c, "Starting controller")
			createAt(t, newAt(namespace, "at", time.Now().Add(outage/2), "true"))
			waitLog(t, c, `phase="PENDING"`)
			if leaderElect {
				waitLog(t, startController(t, namespace, append(args, "-leader-elect-identity=standby")...), "Attempting to acquire leader lease")
			}

			b.off()
			back := time.After(outage)
			if leaderElect {
				select {
				case err := <-c.exited:
					c.exited = nil
					if err == nil {
						t.Error("it ended well without its lease")
					}
					startController(t, namespace, args...)
				case <-back:
					t.Fatal("it goes on without its lease")
				}
			}
			<-back
			b.on(t)
			returned := time.Now()
			createAt(t, newAt(namespace, "new", returned, "true"))
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			waitPhase(t, namespace, "new", v1alpha1.PhaseRunning)
			for _, create := range wantCreates(t, namespace, 2) {
				late := create.RequestReceivedTimestamp.Sub(returned)
				t.Logf("%s was created %v after the API server's return", create.ObjectRef.Name, late)
				if late < 0 || late > 5*time.Second {
					t.Errorf("%s was created %v after the API server's return, want at most 5 s", create.ObjectRef.Name, late)
				}
			}
		})
	}
}

// breaker passes connections on to the API server while it is on. While it is
// off nobody listens.
type breaker struct {
	address  string
	upstream string

	lock        sync.Mutex
	listener    net.Listener
	connections map[net.Conn]bool
}

func newBreaker(t *testing.T) *breaker {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", controllerConfig)
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{upstream: host.Host, connections: map[net.Conn]bool{}}
	eventually(t, "a port that is free", func(context.Context) (bool, error) {
		// Not one that the kernel gives to others while it is off.
		b.address = fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(10000))
		listener, err := net.Listen("tcp", b.address)
		if err == nil {
			err = listener.Close()
		}
		return err == nil, nil
	})
	b.on(t)
	t.Cleanup(b.off)
	return b
}

func (b *breaker) on(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	b.lock.Lock()
	defer b.lock.Unlock()
	b.listener = listener
	go func() {
		for {
			down, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", b.upstream)
			if err != nil {
				_ = down.Close()
				continue
			}
			b.lock.Lock()
			b.connections[down], b.connections[up] = true, true
			b.lock.Unlock()
			go pipe(down, up)
			go pipe(up, down)
		}
	}()
}

func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
}

func (b *breaker) off() {
	b.lock.Lock()
	defer b.lock.Unlock()
	_ = b.listener.Close()
	for connection := range b.connections {
		_ = connection.Close()
	}
	clear(b.connections)
}
