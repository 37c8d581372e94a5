"""The core package without torch: ranks are threads of this process, each with a separate session."""

import gc
import os
import subprocess
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy
import tandem
from node import PATIENCE, Daemon, wait_until
from tandem import errors
from tandem.bootstrap import Job
from tandem.enums import DType

KEY = "0123456789abcdef"


class NodeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)

    def ranks(self, function, world=2, name=None, **joined):
        """function(group) on every rank of a new group; the results in rank order."""
        name = name or self.id()

        def rank(number):
            with tandem.connect(self.daemon.runtime_dir, name=f"rank{number}") as client:
                with client.join(name, world_size=world, rank=number, job_key=KEY, **joined) as group:
                    return function(group)

        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(rank, range(world)))


class Plans(NodeTest):
    def test_all_reduce_of_symmetric_tensors(self):
        def rank(group):
            x, y = group.empty((3, 5)), group.empty((3, 5))
            numpy.asarray(x)[:] = numpy.arange(15).reshape(3, 5) + 100 * group.rank
            with group.prepare("sum", "all_reduce", [("input", x), ("output", y)]) as plan:
                plan.launch(x, y)
                plan.wait()
                self.assertTrue(plan.done())
                return numpy.asarray(y).copy(), plan.info, plan.explain()

        for values, info, text in self.ranks(rank):
            numpy.testing.assert_array_equal(values, 2 * numpy.arange(15).reshape(3, 5) + 100)
            self.assertEqual((info["op"], info["key"]), ("all_reduce", "sum"))
            self.assertIn(info["algorithm"], text)
            self.assertIn(info["reason"], text)
            for other in info["refused"]:
                self.assertIn(other["reason"], text)

    def test_matmul_with_strides_and_bias(self):
        rng = numpy.random.default_rng(1)
        a, b = rng.standard_normal((2, 6, 8), numpy.float32), rng.standard_normal((4, 8), numpy.float32)
        bias = rng.standard_normal(4).astype(numpy.float32)

        def rank(group):
            slots = [group.registered(shape) for shape in ((6, 8), (4, 8), (3, 4), (4,))]
            for slot, value in zip(slots, (a[group.rank], b, None, bias)):
                if value is not None:
                    numpy.asarray(slot)[:] = value
            operands = [
                tandem.Operand("a", "f32", (6, 8)),
                tandem.Operand("b", "f32", (8, 4), (1, 8)),
                tandem.Operand("c", "f32", (3, 4)),
                tandem.Operand("bias", "f32", (4,)),
            ]
            with group.prepare("mm", "matmul_reduce_scatter", operands, dim=0) as plan:
                plan.launch(*slots)
                plan.wait()
                return numpy.asarray(slots[2]).copy()

        whole = (a.astype(numpy.float64) @ b.T).sum(axis=0) + bias
        numpy.testing.assert_allclose(numpy.concatenate(self.ranks(rank)), whole, rtol=1e-5, atol=1e-5)

    def test_graph_replays(self):
        def rank(group):
            x, y = group.empty((8,)), group.empty((8,))
            stream = tandem.Stream()
            with group.prepare("sum", "all_reduce", [("input", x), ("output", y)]) as plan:
                stream.begin_capture()
                plan.launch(x, y, stream=stream)
                graph = stream.end_capture()
                sums = []
                for step in range(3):
                    numpy.asarray(x)[:] = step + group.rank
                    graph.launch(stream)
                    stream.synchronize(30)
                    sums.append(float(numpy.asarray(y)[0]))
                    x.barrier()
                graph.close()
                return sums

        self.assertEqual(self.ranks(rank), [[1, 3, 5]] * 2)

    def test_disagreement_names_the_field(self):
        def rank(group):
            with self.assertRaises(errors.FieldMismatch) as caught:
                group.prepare(
                    "x", "all_reduce", [tandem.Operand(role, "f32", (4 + group.rank,)) for role in ("input", "output")]
                )
            return caught.exception.field, caught.exception.code

        for field, code in self.ranks(rank):
            self.assertIn("shape", field)
            self.assertEqual(code, tandem.Code.INVALID_ARGUMENT)

    def test_refused_algorithm(self):
        def rank(group):
            operands = [tandem.Operand(role, "f32", (4,)) for role in ("input", "output")]
            with self.assertRaises(tandem.AlgorithmRefused) as caught:
                group.prepare("x", "all_reduce", operands, algorithm="low_latency")
            return str(caught.exception)

        for text in self.ranks(rank):
            self.assertIn("ALGORITHM_REFUSED", text)

    def test_missing_rank_is_named(self):
        def rank(group):
            if group.rank == 1:
                return gone.wait(60)
            try:
                with self.assertRaises(tandem.RankLate) as caught:
                    group.prepare("x", "barrier", deadline=0.3)
                return caught.exception.ranks
            finally:
                gone.set()

        gone = threading.Event()
        self.assertEqual(self.ranks(rank)[0], (1,))

    def test_bindings_are_checked(self):
        def rank(group):
            x, y, small = group.empty((64,)), group.empty((64,)), group.registered((4,))
            with group.prepare("sum", "all_reduce", [("input", x), ("output", y)]) as plan:
                with self.assertRaises(TypeError):
                    plan.launch("x", y)
                x.barrier()
                with self.assertRaises(errors.TandemError) as caught:
                    plan.launch(small if group.rank == 0 else x, y)
                    plan.wait()
                with self.assertRaises(ValueError):
                    plan.launch(x, y, deadline=-1)
                return type(caught.exception)

        kinds = self.ranks(rank)
        self.assertIs(kinds[0], errors.OutOfRange)


class MemoryTest(NodeTest):
    def test_arrays_outlive_the_object(self):
        def rank(group):
            tensor = group.empty((4, 4), "i32")
            array = numpy.asarray(tensor)
            array[:] = 7
            capsule = numpy.from_dlpack(tensor)
            tensor.close()
            del tensor
            gc.collect()
            self.assertTrue((array == 7).all())
            array[0, 0] = 8
            del array
            gc.collect()
            self.assertEqual(int(capsule[0, 0]), 8)
            return True

        self.assertEqual(self.ranks(rank), [True, True])

    def test_memory_goes_with_its_last_view(self):
        with tandem.connect(self.daemon.runtime_dir) as client:

            def registrations():
                return self.daemon.ctl_json("stats").get("registrations", 0)

            before = len(os.listdir("/proc/self/fd"))
            for _ in range(50):
                memory = client.registered((1024,), gpu_uuid=client.gpus[0])
                view = numpy.asarray(memory)
                memory.close()
                del memory, view
            gc.collect()
            self.assertLess(len(os.listdir("/proc/self/fd")), before + 10)

    def test_memory_that_is_dropped_in_flight_stays_to_the_launchs_end(self):
        dropped = [threading.Event() for _ in range(2)]

        def rank(group, captured, turn):
            x, y = group.registered((1 << 16,)), group.registered((1 << 16,))
            numpy.asarray(x)[:] = group.rank + 1
            plan = group.prepare(f"sum {captured}", "all_reduce", [("input", x), ("output", y)])
            stream, graph = tandem.Stream(), None
            if captured:
                stream.begin_capture()
                plan.launch(x, y, stream=stream)
                graph = stream.end_capture()
            if group.rank == 1:
                self.assertTrue(turn.wait(PATIENCE))  # rank 0's launch waits, without the memory's objects
            graph.launch(stream) if captured else plan.launch(x, y, stream=stream)
            if group.rank == 0:
                del x, y
                if not captured:
                    del plan
                gc.collect()
                turn.set()
                stream.synchronize(PATIENCE)
                return
            stream.synchronize(PATIENCE)
            self.assertTrue((numpy.asarray(y) == 3).all())

        for captured, turn in enumerate(dropped):
            options = {"placement": "client"}
            self.ranks(lambda group, given=(bool(captured), turn): rank(group, *given), options=options)

    def test_a_plan_goes_with_its_group(self):
        def rank(group):
            x, y = group.registered((4,)), group.registered((4,))
            plan = group.prepare("sum", "all_reduce", [("input", x), ("output", y)])
            plan.launch(x, y)
            group.leave()
            plan.close()
            return True

        self.assertEqual(self.ranks(rank), [True, True])

    def test_dtypes(self):
        with tandem.connect(self.daemon.runtime_dir) as client:
            for dtype in DType:
                memory = client.registered((2, 3), dtype, gpu_uuid=client.gpus[0])
                self.assertEqual(memory.nbytes >= 6 * dtype.itemsize, True)
                self.assertEqual(memory.__dlpack_device__(), (1, 0))
                memory.__dlpack__()  # dropped without a consumer
                if dtype.name in ("bf16", "f8e4m3", "f8e5m2"):
                    self.assertFalse(hasattr(memory, "__array_interface__"))
                else:
                    self.assertEqual(numpy.asarray(memory).shape, (2, 3))
                self.assertFalse(hasattr(memory, "__cuda_array_interface__"))
                with self.assertRaises(BufferError):
                    memory.__dlpack__(copy=True)
            memory.close()
            with self.assertRaises(ValueError):
                memory.__dlpack__()

    def test_peers_memory_and_signals(self):
        def rank(group):
            tensor, peer = group.empty((6,), "f32"), 1 - group.rank
            numpy.asarray(tensor)[:] = group.rank
            tensor.barrier()
            view = numpy.asarray(tensor.buffer(peer))
            self.assertTrue((view == peer).all())
            self.assertEqual(numpy.asarray(tensor.buffer(peer, (2,), "i32", 8)).shape, (2,))
            with self.assertRaises(errors.OutOfRange):
                tensor.buffer(peer, (7,))
            with self.assertRaises(errors.OutOfRange):
                tensor.buffer(2)
            tensor.put_signal(peer, 1)
            tensor.wait_signal(peer, 1)
            with self.assertRaises(tandem.DeadlineExceeded) as caught:
                tensor.wait_signal(peer, 2, timeout=0.05)
            self.assertEqual(caught.exception.rank, peer)
            tensor.barrier()
            tensor.memset32(5, peer=peer, offset_bytes=4, count=2)
            group.client.host_stream().synchronize(30)
            tensor.barrier()
            return numpy.asarray(tensor).view(numpy.int32).tolist()[1:3]

        self.assertEqual(self.ranks(rank), [[5, 5], [5, 5]])

    def test_persistent_names(self):
        def rank(group):
            first = group.empty((16,), name="state")
            numpy.asarray(first)[:] = 3
            again = group.empty((16,), name="state")
            return first.registration_id == again.registration_id and float(numpy.asarray(again)[5]) == 3

        self.assertEqual(self.ranks(rank), [True, True])


class Sessions(NodeTest):
    def test_versions(self):
        versions = tandem.version()
        with tandem.connect(self.daemon.runtime_dir) as client:
            self.assertEqual(versions.library.split("+")[0], client.daemon_version.split("+")[0])
        self.assertGreater(versions.protocol, 0)
        self.assertGreater(versions.interface, 0)

    def test_no_daemon(self):
        with self.assertRaises(tandem.Unavailable) as caught:
            tandem.connect("/nonexistent", timeout=0.2)
        self.assertIn("/nonexistent", str(caught.exception))

    def test_client(self):
        with tandem.connect(self.daemon.runtime_dir, name="me") as client:
            self.assertEqual((client.backend, len(client.gpus)), ("host", 4))
            client.check()
            self.assertIn("host", repr(client))
        with self.assertRaises(ValueError):
            client.check()
        client.close()
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "the session stays")

    def test_wrong_arguments(self):
        with tandem.connect(self.daemon.runtime_dir) as client:
            with self.assertRaises(tandem.InvalidArgument) as caught:
                client.join("g", world_size=10, rank=9, job_key=KEY)
            self.assertEqual(caught.exception.field, "gpu_uuid")
            with self.assertRaisesRegex(ValueError, "f8e4m3"):
                client.registered((1,), "float12", gpu_uuid=client.gpus[0])

    def test_init_from_torchruns_variables(self):
        job = Job("torchrun", 0, 1, 0, 1, KEY)
        with tandem.init("solo", runtime_dir=self.daemon.runtime_dir, job=job) as group:
            self.assertEqual((group.rank, group.world_size), (0, 1))
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "the session stays")


class Launchers(unittest.TestCase):
    def test_torchrun(self):
        env = {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "a",
            "MASTER_PORT": "1",
        }
        job = Job.from_environment(env)
        self.assertEqual(
            (job.launcher, job.rank, job.world_size, job.local_rank, job.local_world_size), ("torchrun", 5, 8, 1, 4)
        )
        self.assertGreaterEqual(len(job.job_key), 16)
        self.assertEqual(Job.from_environment({**env, "RANK": "4", "LOCAL_RANK": "0"}).job_key, job.job_key)
        self.assertNotEqual(Job.from_environment({**env, "MASTER_PORT": "2"}).job_key, job.job_key)
        self.assertNotEqual(Job.from_environment({**env, "TORCHELASTIC_RESTART_COUNT": "1"}).job_key, job.job_key)
        self.assertEqual(Job.from_environment({**env, "TANDEM_JOB_KEY": "k" * 16}).job_key, "k" * 16)
        with self.assertRaises(LookupError):
            Job.from_environment({**env, "TANDEM_JOB_KEY": "short"})

    def test_slurm(self):
        env = {
            "SLURM_PROCID": "9",
            "SLURM_NTASKS": "10",
            "SLURM_LOCALID": "1",
            "SLURM_NODEID": "2",
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
        }
        job = Job.from_environment(env)
        self.assertEqual(
            (job.launcher, job.rank, job.world_size, job.local_rank, job.local_world_size), ("slurm", 9, 10, 1, 2)
        )
        self.assertNotEqual(Job.from_environment({**env, "SLURM_STEP_ID": "1"}).job_key, job.job_key)
        with self.assertRaises(LookupError):
            Job.from_environment({**env, "SLURM_NODEID": "3"})

    def test_mpi(self):
        env = {
            "OMPI_COMM_WORLD_RANK": "3",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "prte-1",
        }
        self.assertEqual(Job.from_environment(env).local_world_size, 2)
        del env["PMIX_NAMESPACE"]
        with self.assertRaisesRegex(LookupError, "TANDEM_JOB_KEY"):
            Job.from_environment(env)
        hydra = {
            "PMI_RANK": "1",
            "PMI_SIZE": "2",
            "MPI_LOCALRANKID": "1",
            "MPI_LOCALNRANKS": "2",
            "TANDEM_JOB_KEY": "k" * 20,
        }
        self.assertEqual(Job.from_environment(hydra).local_rank, 1)

    def test_variables_that_are_no_numbers_are_named(self):
        torchrun = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
        job = Job.from_environment({**torchrun, "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""})
        self.assertEqual((job.local_rank, job.local_world_size), (5, 8), "as where they are not there")
        key = {"TANDEM_JOB_KEY": "k" * 16}
        slurm = {"SLURM_PROCID": "9", "SLURM_NTASKS": "10", "SLURM_LOCALID": "1", **key}
        mpi = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")} | key
        hydra = {"PMI_RANK": "1", "PMI_SIZE": "2", **key}
        for env, name, text in (
            (torchrun, "RANK", ""),
            (torchrun, "WORLD_SIZE", "all"),
            (torchrun, "LOCAL_RANK", "-1"),
            (slurm, "SLURM_NTASKS", ""),
            (slurm, "SLURM_NODEID", "a"),
            (mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", ""),
            (hydra, "PMI_RANK", "x"),
            (hydra, "MPI_LOCALNRANKS", "1.5"),
        ):
            with self.subTest(name=name), self.assertRaisesRegex(LookupError, f"{name} is '{text}', not a number"):
                Job.from_environment({**env, name: text})

    def test_none(self):
        with self.assertRaisesRegex(LookupError, "torchrun"):
            Job.from_environment({})


class Errors(unittest.TestCase):
    def test_classes(self):
        lost = errors.make(14, "rank 1 (pid 77) has ended", reason="RANK_LOST", who="rank 1", ranks=(1,), pid=77)
        self.assertIsInstance(lost, tandem.RankLost)
        self.assertIsInstance(lost, tandem.Unavailable)
        self.assertEqual((lost.rank, lost.pid, lost.code.name), (1, 77, "UNAVAILABLE"))
        self.assertIsInstance(errors.make(4, "late", reason="RANK_LATE", who="ranks 1, 3", ranks=(1, 3)), TimeoutError)
        self.assertIsInstance(errors.make(10, "cut off", reason="ENGINE_RESTARTED"), tandem.LaunchAborted)
        self.assertIs(type(errors.make(4, "x", reason="RANK_LOST")), tandem.DeadlineExceeded)
        self.assertIs(type(errors.make(99, "x")), errors.Unknown)

    def test_core_needs_no_torch(self):
        code = "import sys, tandem; tandem.connect, tandem.Plan; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
