//go:build e2e

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
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// podFault keeps the containers of a Pod from starting, in a way that the API server does not
// see.
type podFault struct {
	// change gives a Pod the fault. name is for what is missing.
	change func(pod *corev1.PodSpec, name string)
	// prepare creates what the fault needs, and fix removes the fault. Without fix, it stays.
	prepare, fix func(t *testing.T, namespace, name string)
	// slow means that the node retries so slowly that the test does not wait for it.
	slow bool
	// expectations
	reason, message string
}

// podFaults are the table of docs/tasks/rehearsal.md.
func podFaults() map[string]podFault {
	create := func(args ...string) func(*testing.T, string, string) {
		return func(t *testing.T, namespace, name string) {
			t.Helper()
			kubectl(t, "", append(append([]string{"create", "-n", namespace}, args...), name)...)
		}
	}
	addKey := func(kind string) func(*testing.T, string, string) {
		return func(t *testing.T, namespace, name string) {
			t.Helper()
			kubectl(t, "", "patch", "-n", namespace, kind, name, "-p", `{"data":{"key":"YQ=="}}`)
		}
	}
	container := func(change func(container *corev1.Container, name string)) func(*corev1.PodSpec, string) {
		return func(pod *corev1.PodSpec, name string) { change(&pod.Containers[0], name) }
	}
	variable := func(source func(corev1.LocalObjectReference) *corev1.EnvVarSource) func(*corev1.PodSpec, string) {
		return container(func(c *corev1.Container, name string) {
			c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: source(corev1.LocalObjectReference{Name: name})}}
		})
	}
	volume := func(source func(name string) corev1.VolumeSource) func(*corev1.PodSpec, string) {
		return func(pod *corev1.PodSpec, name string) {
			pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source(name)}}
			pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}
	}
	claim := volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	})
	needs := func(what corev1.ResourceName, much string) func(*corev1.PodSpec, string) {
		return container(func(c *corev1.Container, _ string) {
			c.Resources.Limits = corev1.ResourceList{what: resource.MustParse(much)}
		})
	}
	key := []corev1.KeyToPath{{Key: "key", Path: "key"}}
	const (
		image, created, mounted = v1alpha1.ReasonImagePullFailed, v1alpha1.ReasonContainerNotCreated, v1alpha1.ReasonVolumeNotMounted
		config, mount           = `^Container main: CreateContainerConfigError: `, `^Pod .*: FailedMount: MountVolume.SetUp failed for volume "data" : `
	)
	return map[string]podFault{
		"no image": {
			change: container(func(c *corev1.Container, _ string) { c.Image = "localhost:1/none:1" }),
			reason: image, message: `^Container main: (ErrImagePull|ImagePullBackOff): .*localhost:1/none:1`,
		},
		"no image yet": {
			change: container(func(c *corev1.Container, name string) {
				c.Image, c.ImagePullPolicy, c.Command = "localhost/late:"+name, corev1.PullNever, []string{"/busybox", "true"}
			}),
			fix: func(t *testing.T, _, name string) {
				t.Helper()
				loadImage(t, "localhost/late:"+name+"=/bin/busybox")
			},
			reason: image, message: `^Container main: ErrImageNeverPull: `,
		},
		"no pull secret": {
			change: private,
			reason: image, message: `^Container main: (ErrImagePull|ImagePullBackOff): .*(401|authoriz)`,
		},
		"no image for the pull secret": {
			change: private,
			prepare: func(t *testing.T, namespace, name string) {
				t.Helper()
				kubectl(t, "", "create", "-n", namespace, "secret", "docker-registry", name, "--docker-server="+registry, "--docker-username=user", "--docker-password=word")
				// A busy node pulls without a Secret that it has not read yet. It has read this one
				// when a Pod has it as a volume.
				reader := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: newTemplate("exec sleep 3600").Spec}
				reader.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
				volume(func(name string) corev1.VolumeSource {
					return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
				})(&reader.Spec, name)
				if _, err := kubeClient.CoreV1().Pods(namespace).Create(t.Context(), reader, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				waitFor(t, namespace, "Ready", "pod/"+name)
			},
			reason: image, message: `^Container main: (ErrImagePull|ImagePullBackOff): .*private:1.*not found`,
		},
		"no ConfigMap of the environment": {
			change: container(func(c *corev1.Container, name string) {
				c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
			}),
			fix:    create("configmap"),
			reason: created, message: config + `configmap "NAME" not found`,
		},
		"no Secret of the environment": {
			change: container(func(c *corev1.Container, name string) {
				c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
			}),
			fix:    create("secret", "generic"),
			reason: created, message: config + `secret "NAME" not found`,
		},
		"no key of a ConfigMap": {
			change: variable(func(name corev1.LocalObjectReference) *corev1.EnvVarSource {
				return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: name, Key: "key"}}
			}),
			prepare: create("configmap"), fix: addKey("configmap"),
			reason: created, message: config + `couldn't find key key in ConfigMap .*/NAME`,
		},
		"no key of a Secret": {
			change: variable(func(name corev1.LocalObjectReference) *corev1.EnvVarSource {
				return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: name, Key: "key"}}
			}),
			prepare: create("secret", "generic"), fix: addKey("secret"),
			reason: created, message: config + `couldn't find key key in Secret .*/NAME`,
		},
		"no ConfigMap of a volume": {
			change: volume(func(name string) corev1.VolumeSource {
				return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
			}),
			fix: create("configmap"), slow: true,
			reason: mounted, message: mount + `configmap "NAME" not found`,
		},
		"no Secret of a volume": {
			change: volume(func(name string) corev1.VolumeSource {
				return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
			}),
			fix: create("secret", "generic"), slow: true,
			reason: mounted, message: mount + `secret "NAME" not found`,
		},
		"no item of a ConfigMap": {
			change: volume(func(name string) corev1.VolumeSource {
				return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: key}}
			}),
			prepare: create("configmap"), fix: addKey("configmap"), slow: true,
			reason: mounted, message: mount + `configmap references non-existent config key: key`,
		},
		"no item of a Secret": {
			change: volume(func(name string) corev1.VolumeSource {
				return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Items: key}}
			}),
			prepare: create("secret", "generic"), fix: addKey("secret"), slow: true,
			reason: mounted, message: mount + `references non-existent secret key: key`,
		},
		"no claim": {
			change: claim,
			fix: func(t *testing.T, namespace, name string) {
				t.Helper()
				createVolume(t, namespace, name, "localhost", corev1.ReadWriteOnce)
			},
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*persistentvolumeclaim "NAME" not found`,
		},
		"no volume of a claim": {
			change: claim,
			prepare: func(t *testing.T, namespace, name string) {
				t.Helper()
				createClaim(t, namespace, name, "", corev1.ReadWriteOnce)
			},
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*pod has unbound immediate PersistentVolumeClaims`,
		},
		"a volume in another zone": {
			change: claim,
			prepare: func(t *testing.T, namespace, name string) {
				t.Helper()
				createVolume(t, namespace, name, "elsewhere", corev1.ReadWriteOnce)
			},
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*PersistentVolume's node affinity`,
		},
		"a volume of a single Pod": {
			change: claim,
			prepare: func(t *testing.T, namespace, name string) {
				t.Helper()
				createVolume(t, namespace, name, "localhost", corev1.ReadWriteOncePod)
				user := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: newTemplate("exec sleep 3600").Spec}
				user.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
				claim(&user.Spec, name)
				if _, err := kubeClient.CoreV1().Pods(namespace).Create(t.Context(), user, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				waitFor(t, namespace, "Ready", "pod/"+name)
			},
			fix: func(t *testing.T, namespace, name string) {
				t.Helper()
				kubectl(t, "", "delete", "-n", namespace, "pod/"+name)
				waitFor(t, namespace, v1alpha1.ConditionComplete, "at/"+name) // Its rehearsal needs the volume after that.
			},
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*ReadWriteOncePod`,
		},
		"no node with the label": {
			change: func(pod *corev1.PodSpec, name string) { pod.NodeSelector = map[string]string{"label": name} },
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*didn't match Pod's node affinity/selector`,
		},
		"tainted node": {
			change:  func(pod *corev1.PodSpec, name string) { pod.NodeSelector = map[string]string{"tainted": name} },
			prepare: createTaintedNode,
			reason:  v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*had untolerated taint`,
		},
		"not enough CPU": {
			change: needs(corev1.ResourceCPU, "1000"),
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*Insufficient cpu`,
		},
		"no GPU": {
			change: needs("nvidia.com/gpu", "1"),
			reason: v1alpha1.ReasonUnschedulable, message: `^Pod .*: .*Insufficient nvidia.com/gpu`,
		},
		"no such runtime": {
			change:  func(pod *corev1.PodSpec, name string) { pod.RuntimeClassName = &name },
			prepare: createRuntimeClass,
			reason:  v1alpha1.ReasonSandboxNotCreated, message: `^Pod .*: FailedCreatePodSandBox: .*no runtime for "none" is configured`,
		},
		"no seccomp profile": {
			change: container(func(c *corev1.Container, name string) {
				c.SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}}
			}),
			reason: created, message: `^Container main: CreateContainerError: .*NAME`,
		},
		"an image that runs as root": {
			change: container(func(c *corev1.Container, _ string) {
				c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: ptr.To(true)}
			}),
			reason: created, message: config + `container has runAsNonRoot and image will run as root`,
		},
	}
}

// registry is where the node finds the registry of startRegistry.
const registry = "localhost:50505"

// private changes a Pod to an image that needs a pull secret.
func private(pod *corev1.PodSpec, name string) {
	pod.ImagePullSecrets, pod.Containers[0].Image = []corev1.LocalObjectReference{{Name: name}}, registry+"/private:1"
}

// startRegistry starts a registry on the node that wants a password, and has no image.
func startRegistry(t *testing.T, namespace string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "registry"}, Spec: newTemplate("echo /:user:word >/httpd.conf; exec busybox httpd -f -p 50505 -c /httpd.conf").Spec}
	pod.Spec.HostNetwork, pod.Spec.TerminationGracePeriodSeconds = true, ptr.To[int64](0)
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(50505)}}, PeriodSeconds: 1}
	if _, err := kubeClient.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, namespace, "Ready", "pod/registry")
}

// createVolume creates a volume that only the node with the given hostname has, and the claim
// for it.
func createVolume(t *testing.T, namespace, name, hostname string, mode corev1.PersistentVolumeAccessMode) {
	t.Helper()
	_, err := kubeClient.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": t.Name()}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{mode},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname}}},
			}}}},
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: name},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	createClaim(t, namespace, name, name, mode)
}

func createClaim(t *testing.T, namespace, name, volume string, mode corev1.PersistentVolumeAccessMode) {
	t.Helper()
	_, err := kubeClient.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// removeVolumes removes the volumes of a test at its end, after the namespace that is created
// next.
func removeVolumes(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, volumes, which := context.Background(), kubeClient.CoreV1().PersistentVolumes(), metav1.ListOptions{LabelSelector: "test=" + t.Name()}
		if err := volumes.DeleteCollection(ctx, metav1.DeleteOptions{}, which); err != nil {
			t.Error(err)
		}
		err := poll(ctx, t.Name()+": the volumes to be gone", func(ctx context.Context) (bool, error) {
			left, err := volumes.List(ctx, which)
			return err == nil && len(left.Items) == 0, err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// createTaintedNode creates a node without a kubelet. An At does not run there for its nodes, and
// by its name it is not the first node, which docs/tasks/every-node.md uses.
func createTaintedNode(t *testing.T, _, name string) {
	t.Helper()
	nodes := kubeClient.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tainted": name, "type": "virtual-kubelet"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/reserved", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
