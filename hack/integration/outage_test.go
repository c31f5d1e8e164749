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

// TestOutage makes the API server unavailable while an At becomes due. The At starts when
// the API server is back, and so does one that is created then. With a lease, the leader
// exits because it cannot renew the lease, and is restarted with the same name. The tests
// next to the controller prove how soon the Ats start; hack/soak.sh measures it after a
// minute.
func TestOutage(t *testing.T) {
	t.Parallel()
	for name, leaderElect := range map[string]bool{"without a lease": false, "with a lease": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range maxLeaders {
				if outage(t, leaderElect) {
					return
				}
			}
			t.Error("each leader lost its lease before the outage")
		})
	}
}

// outage is a trial of TestOutage. It returns false if the leader lost its lease first.
func outage(t *testing.T, leaderElect bool) bool {
	t.Helper()
	namespace := newNamespace(t)
	b := newBreaker(t)
	args := []string{"-master=https://" + b.address, "-leader-elect-resource-namespace=" + namespace}
	if leaderElect {
		args = append(args, "-leader-elect", "-leader-elect-identity=leader")
	}
	c := startController(t, namespace, args...)
	waitLog(t, c, "Starting controller")
	if leaderElect {
		waitLog(t, startController(t, namespace, append(args, "-leader-elect-identity=standby")...), "Attempting to acquire leader lease")
	}
	// On a slow machine, it takes several tries to make the API server unavailable before
	// the At is due.
	var name string
	var due time.Time
	for lead := 3 * time.Second; ; lead *= 2 {
		due = time.Now().Add(lead)
		name = fmt.Sprintf("at-%v", lead)
		createAt(t, newAt(namespace, name, due, "true"))
		if !waitLeaderLog(t, c, fmt.Sprintf(`at="%s/%s" phase="PENDING"`, namespace, name)) {
			return false
		}
		b.off()
		if time.Now().Before(due) {
			break
		}
		b.on(t)
	}

	left := time.Now()
	waitLog(t, c, "The API server is unreachable; waiting for it")
	if leaderElect {
		if err := c.wait(t); err == nil {
			t.Error("it ended well without its lease")
		}
		startController(t, namespace, args...)
	}
	time.Sleep(max(time.Until(due.Add(time.Second)), time.Until(left.Add(*soakOutage))))
	returned := time.Now()
	b.on(t)
	createAt(t, newAt(namespace, "new", returned, "true"))
	waitPhase(t, namespace, name, v1alpha1.PhaseRunning)
	waitPhase(t, namespace, "new", v1alpha1.PhaseRunning)
	late := map[string]time.Duration{}
	for _, creation := range creations(t, namespace) {
		if _, ok := late[creation.ObjectRef.Name]; ok {
			t.Errorf("Pod %s was created twice", creation.ObjectRef.Name)
		}
		late[creation.ObjectRef.Name] = creation.RequestReceivedTimestamp.Sub(returned)
	}
	for _, pod := range []string{name + "-pod", "new-pod"} {
		t.Logf("%s was created %v after the API server's return", pod, late[pod])
		if _, ok := late[pod]; !ok || late[pod] < 0 || *soakOutage > 0 && late[pod] > 5*time.Second {
			t.Errorf("%s was created %v after the API server's return, want at most 5 s", pod, late[pod])
		}
	}
	return true
}

// breaker forwards connections to the API server while it is on. While it is off,
// connections are refused.
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
		// Not a port that the kernel assigns to others while the breaker is off.
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
			if b.listener == listener {
				b.connections[down], b.connections[up] = true, true
			} else { // switched off after it was accepted
				_, _ = down.Close(), up.Close()
			}
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
	if b.listener != nil {
		_ = b.listener.Close()
	}
	b.listener = nil
	for connection := range b.connections {
		_ = connection.Close()
	}
	clear(b.connections)
}
